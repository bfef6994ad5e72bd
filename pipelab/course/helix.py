"""Three clusters of the Helix paper, with its own profile and the placements that it ships."""

from dataclasses import dataclass

import numpy as np

from pipelab.errors import UnknownName, nearest, shown

_INSIDE_MEGABYTES_PER_S = 1000.0  # or a little more; no node is as fast as that


@dataclass(frozen=True, eq=False)
class HelixCluster:
    """One instance of Helix (ASPLOS 2025).

    Attributes
    ----------
    name : str
    layers : int
        Of the model, Llama-2-70B.
    machines : tuple of str
        Type of every node, such as "L4x2" for a node of two L4.
    sites : tuple of str
        Of every node; "" where all are in one place.
    rates : dict of str to dict of int to float
        Tokens/s of a node, by its type and by the number of layers that it holds.
    links : float array, shape (N, N)
        Tokens/s from node to node.
    shipped : tuple of (int, int)
        First and last layer on every node in the placement that Helix ships; layers count from 1.
    reported, reported_bound : float
        What this placement yields, and what its solver could exclude when it was stopped, in tokens/s.
    stopped_after_s : float
        When that was, in seconds.
    """

    name: str
    layers: int
    machines: tuple[str, ...]
    sites: tuple[str, ...]
    rates: dict[str, dict[int, float]]
    links: np.ndarray
    shipped: tuple[tuple[int, int], ...]
    reported: float
    reported_bound: float
    stopped_after_s: float


def helix_cluster(name: str) -> HelixCluster:
    """An instance of the Helix paper, from `data/helix`.

    Parameters
    ----------
    name : {"single24", "geo24", "hetero42"}
        24 nodes in one place, the same at three sites, and 42 nodes of seven types.

    Returns
    -------
    HelixCluster
        Rates in tokens/s, which count those of prompts and of answers.

    Raises
    ------
    UnknownName
        There is no such instance.

    References
    ----------
    Y. Mei et al., *Helix: Serving Large Language Models over Heterogeneous GPUs and Network via
    Max-Flow*, ASPLOS 2025.

    Examples
    --------
    >>> single = helix_cluster("single24")
    >>> len(single.machines), single.rates["T4"][4], single.shipped[0]
    (24, 757.8531857, (8, 11))
    """
    import pandas as pd

    from pipelab.io.paths import data_dir

    def table(file: str) -> "pd.DataFrame":
        return pd.read_csv(data_dir() / "helix" / file, keep_default_na=False)

    facts = table("instances.csv").set_index("instance")
    if name not in facts.index:
        raise UnknownName(f"Helix ships no {shown(name)}; {nearest(name, facts.index)}")
    of, nodes = facts.loc[name], table("nodes.csv").query("instance == @name")
    rates: dict[str, dict[int, float]] = {}
    for row in table("rates.csv").itertuples():
        if name in row.instances.split("; "):
            rates.setdefault(row.machine, {})[row.layers] = row.tokens_per_s
    megabytes = np.full((len(nodes), len(nodes)), _INSIDE_MEGABYTES_PER_S)
    for link in table("links.csv").query("instance == @name").itertuples():
        megabytes[link.node, link.other] = megabytes[link.other, link.node] = link.megabytes_per_s
    return HelixCluster(
        name,
        int(of["layers"]),
        tuple(nodes["machine"]),
        tuple(nodes["site"]),
        rates,
        megabytes * 1e6 / float(of["bytes_per_token"]),
        tuple(zip(nodes["first_layer"].tolist(), nodes["last_layer"].tolist(), strict=True)),
        float(of["reported_tokens_per_s"]),
        float(of["reported_bound_tokens_per_s"]),
        float(of["stopped_after_s"]),
    )
