"""A deployment as a file for other programs: every pipeline with its stages, as JSON or CSV."""

import json
from pathlib import Path

from pipelab.engine.deployments.result import Deployment
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.io.csv_cells import csv_text, path_of, plain, write_to
from pipelab.io.saved_plans import RATE, check_suffix, conditions


def save_deployment(deployment: Deployment, path: str | Path) -> Path:
    """Write a deployment, replacing the file whole.

    Parameters
    ----------
    deployment : Deployment
        With at least one pipeline.
    path : str or Path
        Ends in `.json` (everything) or `.csv` (one row per stage of every pipeline). Pipelines,
        stages and layers are counted from 1.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    InvalidPlacement
        A pipeline is not valid for the deployment's problem.
    InvalidValue
        There is no pipeline, or the file would be of another kind.
    InvalidData
        Nothing can be written there.
    """
    path = path_of("save", path)
    check_suffix("save", path)
    if not deployment.pipelines:
        expected = f"expected a deployment with a pipeline. {deployment.sentence}"
        raise InvalidValue("save", [("x", deployment.status, expected)])
    evaluate(deployment.problem, deployment)
    if path.suffix == ".json":
        document = deployment.to_dict() | {"conditions": conditions(deployment.problem)}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    else:
        rows = _rows(deployment)
        text = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    write_to("save", path, text)
    return path


def _rows(deployment: Deployment) -> list[dict]:
    """One for each stage of each pipeline."""
    replicas = [(p, r) for p in deployment.pipelines for r in p.replicas]
    return [
        {
            "pipeline": i,
            "stage": s,
            "first_layer": stage.layers.start + 1,
            "last_layer": stage.layers.stop,
            "gpus": " ".join(map(str, stage.gpus)),
            "batch_size": pipeline.workload.batch_size,
            "pipeline_" + RATE: plain(float(pipeline.throughput)),
        }
        for i, (pipeline, replica) in enumerate(replicas, start=1)
        for s, stage in enumerate(replica.stages, start=1)
    ]
