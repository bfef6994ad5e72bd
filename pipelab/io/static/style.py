"""How the pages look: one column, code quieter than text, tables that scroll on a narrow screen."""

STYLE = """
body { margin: 0; background: #fff; color: #222; font: 16px/1.6 "DejaVu Sans", Verdana, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 8px 20px 80px; }
nav { position: sticky; top: 0; z-index: 5; background: #F5F5F5; border-bottom: 1px solid #D0D0D0; padding: 6px 20px; }
nav a { margin-right: 10px; } nav a[aria-current] { color: #222; font-weight: bold; text-decoration: none; }
a { color: #00568A; } h1, h2, h3 { line-height: 1.25; margin: 1.6em 0 .5em; } h1 { margin-top: .8em; }
h1, h2, h3 { scroll-margin-top: 48px; } a.anchor-link { display: none; }
pre { overflow-x: auto; margin: .4em 0; font: 13.5px/1.5 "DejaVu Sans Mono", Consolas, monospace; }
code { font: 14px "DejaVu Sans Mono", Consolas, monospace; }
div.input_area, details pre { background: #F7F7F7; padding: 2px 12px; border-left: 3px solid #D0D0D0 }
main .highlight { background: none; } .output_area pre, .still pre { white-space: pre-wrap; }
div.prompt { display: none; } div.output_area { margin: .5em 0; }
.wide, .output_html, .rendered_html { overflow-x: auto; }
table, th, td { border: 0; }
table { border-collapse: collapse; margin: .6em 0; font-size: 14px; }
th, td { padding: 4px 10px; border-bottom: 1px solid #E4E4E4; vertical-align: top; text-align: right; }
th { border-bottom-color: #999; }
td:first-child, th:first-child, .rendered_html td, .rendered_html th { text-align: left; }
.figure { margin: .4em 0; } .still { border: 1px solid #D0D0D0; border-radius: 4px; padding: 4px 12px; }
.note { color: #555; font-size: 14px; margin: 4px 0; }
.control { display: inline-block; margin: 2px 18px 2px 0; font-size: 14px; }
.row { display: flex; flex-wrap: wrap; gap: 0 14px; } .column { display: block; }
summary { cursor: pointer; }
math { font-family: "Latin Modern Math", "STIX Two Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
math[display=block] { margin: .8em 0; }
"""
