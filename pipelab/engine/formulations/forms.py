"""The two forms of the joint ILP by name."""

from types import ModuleType

from pipelab.engine.formulations import joint, joint_tight
from pipelab.errors import UnknownName, nearest

FORMS: dict[str, ModuleType] = {"written": joint, "tight": joint_tight}


def joint_form(form: str, big_m: str = "valid") -> ModuleType:
    """The module of a form: its families, columns, bounds and `build`.

    Raises
    ------
    UnknownName
        No such form or big-M, or the M of the author's code for the tight form, which has
        none.
    """
    if not isinstance(form, str) or form not in FORMS:
        raise UnknownName(f"there is no form {form!r}; {nearest(form, FORMS)}")
    if not isinstance(big_m, str) or big_m not in joint.BIG_MS:
        raise UnknownName(f"there is no big_m {big_m!r}; {nearest(big_m, joint.BIG_MS)}")
    if big_m != "valid" and form != "written":
        raise UnknownName(f"form={form!r} has no big_m={big_m!r}; only form='written' has an M")
    return FORMS[form]
