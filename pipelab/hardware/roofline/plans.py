"""What `Roofline` says of whole plans: nodes, training, what they hold, and how far off a rate may be."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pipelab.cluster import GPU
from pipelab.fields import Count, checked_arguments, described
from pipelab.hardware.roofline.stage_costs import RooflineStages
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Problem, Workload

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

    from pipelab.costs import TrainingCost
    from pipelab.evaluation import Evaluation, StageReport
    from pipelab.hardware.roofline.expected_rates import ExpectedRate
    from pipelab.hardware.what_fits import Capacity
    from pipelab.placement import Placement

WithDimensions = Annotated[
    Transformer, described("a model with dimensions, such as load_model('Llama-3-8B')")
]


class RooflinePlans(RooflineStages):
    """The part of `Roofline` that answers questions about plans."""

    @checked_arguments
    def node_mixes(
        self,
        model: WithDimensions,
        workload: Annotated[Workload, described("a Workload")],
        gpu: Annotated[GPU, described("a GPU")],
        gpus: Count,
    ) -> "DataFrame":
        """Every mix of tensor parallelism, pipeline stages and replicas on one node.

        The sequences of the workload (`batch_size` · `in_flight`) are shared among the replicas; a
        replica has as many microbatches in flight as stages, each of an equal share, rounded up.
        Layers are cut so that the slowest stage is as fast as can be.

        Parameters
        ----------
        model : Transformer
            What the node serves.
        workload : Workload
            All that it serves at once.
        gpu : GPU
            One of the node's, all of which are equal, with `node` and `node_gb_per_s`.
        gpus : int
            How many the node has; every mix uses all of them.

        Returns
        -------
        pandas.DataFrame
            One row per mix, what fits first, then by rate: `tensor_parallel`, `stages`, `replicas`,
            `sequences` (after rounding), `tokens_per_s`, `seconds_per_turn` (in decode the time per
            token of every stream), `memory_needed_gb` on the fullest GPU, with what must stay free,
            `memory_offered_gb` and `fits`.

        Raises
        ------
        InvalidValue
            An argument is of another kind, the type is not known, or the GPU has no node.

        Examples
        --------
        >>> import pipelab as pl
        >>> gpu = pl.GPU("H100-SXM", 80, node="dgx", node_gb_per_s=450)
        >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(4096, 32, "decode")
        >>> table = pl.Roofline().node_mixes(llama, load, gpu, 8)
        >>> table.loc[0, ["tensor_parallel", "stages", "replicas"]].tolist()
        [8, 1, 1]
        """
        from pipelab.hardware.roofline.node_mixes import mixes_of_node

        return mixes_of_node(self, model, workload, gpu, gpus)

    def training_cost(
        self, problem: "Problem", report: "StageReport", **recipe: Any
    ) -> "TrainingCost":
        """What one stage of a placement takes and keeps in training.

        Parameters
        ----------
        problem : Problem
            With a workload of prefill or training: its batch is one microbatch of whole sequences.
        report : StageReport
            Of the stage, from `evaluate`.
        **recipe
            `recompute`: "none", "selective" (the same where attention is fused, as here) or "full".
            `bytes_per_parameter` of weights, gradients and the optimizer's state: by default 14 with
            Adam in mixed precision, and the engine's gradients: 18 in all for Megatron, which adds
            them up in fp32.

        Returns
        -------
        TrainingCost
            Seconds of one microbatch, and gigabytes on the fullest GPU.

        Notes
        -----
        The constants are those of the engine, if it trains, else of Megatron (`for_training`).
        F = (M + A)/speed + X, I = (M + 2.5·A)/speed + X and W = M/speed, with the FLOPs M of
        matrices, the head on all tokens among them, and A of attention. X is what norms and the like
        move: `Engine.activation_moves` times the activations that are kept, over the bandwidth;
        all-reduces of cut layers come with X. A step adds up the gradients of the GPUs that share a
        stage, over their slowest link, and updates the weights, as fast as memory allows. Memory:
        see `pipelab.hardware.training_memory`. `course.training_errors` holds all of it against
        published times.
        """
        from pipelab.hardware.roofline.training import training_cost

        return training_cost(self.for_training(), problem, report, **recipe)

    def training_table(
        self, problem: "Problem", gpus: Sequence[int], **recipe: Any
    ) -> "np.ndarray | None":
        """`training_cost` for every kind of span (`model.spans`) of a stage of these GPUs at once.

        Parameters
        ----------
        problem : Problem
            With a workload of training.
        gpus : sequence of int
            Ids of the stage's GPUs.
        **recipe
            As for `training_cost`.

        Returns
        -------
        numpy.ndarray or None
            Shape (8, U): the fields of `TrainingCost`. None where different GPUs share the batch
            unevenly.
        """
        from pipelab.hardware.roofline.training import training_table

        return training_table(self.for_training(), problem, gpus, **recipe)

    def mfu(self, problem: "Problem", placement: "Placement", tokens_per_s: float) -> float:
        """Model FLOPs utilization: what a model needs, over what the GPUs could compute at most.

        Parameters
        ----------
        problem : Problem
            Whose model is trained, on sequences of its workload.
        placement : Placement
            Whose GPUs count, at their peak of 16-bit products.
        tokens_per_s : float
            At which it is trained.

        Returns
        -------
        float
            A share. As PaLM counts it: three times the FLOPs of a forward, with attention as if none
            of its pairs were masked, and nothing for what is recomputed.

        References
        ----------
        A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, 2022, appendix B.
        """
        from pipelab.hardware.roofline.training import training_flops

        load, gpus = problem.workload, problem.cluster.gpus
        used = [gpus[g].type for stage in placement.stages for g in stage.gpus]
        peak = sum(self.gpus[kind].fp16_tflop_per_s for kind in used) * 1e12
        return tokens_per_s * training_flops(problem.model, load) / (load.tokens * peak)

    def capacity(self, problem: Problem, placement: "Placement") -> "Capacity":
        """What a placement holds: the longest context, the most sequences, and which stage limits them.

        Parameters
        ----------
        problem : Problem
            Whose memory counts; its workload says how many sequences have the longest context, and
            how long the most sequences are. It need not fit itself.
        placement : Placement
            Valid but for memory.

        Returns
        -------
        Capacity
            `context` (tokens), `sequences` (at once), and `to_frame()` with both of every stage.

        Raises
        ------
        InvalidPlacement
            A rule besides memory is broken.
        InvalidValue
            An argument is of another kind.

        Examples
        --------
        >>> import pipelab as pl
        >>> cluster, load = pl.Cluster.from_counts({"L4": 1}, 24, 1), pl.Workload(8192, 1, "decode")
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), link_units="tokens")
        >>> held = problem.costs.capacity(problem, pl.Placement.of([(32, (0,))]))
        >>> held.context > 40_000, held.sequences
        (True, 5)
        """
        from pipelab.hardware.what_fits import capacity

        return capacity(problem, placement)

    def expected_rate(self, problem: Problem, evaluation: "Evaluation") -> "ExpectedRate":
        """How far a plan's rate may be off, by published times that no constant was fitted to.

        Parameters
        ----------
        problem : Problem
            Whose phase counts.
        evaluation : Evaluation
            Of the plan, such as `result.evaluation`.

        Returns
        -------
        ExpectedRate
            `low` and `high` in tokens/s, between which four of five measured times lie; `within`, a
            share for `pl.sensitivity`; and a `sentence`. The first three are None where no such time
            was compared: prompts of mixtures of experts.

        Examples
        --------
        >>> import pipelab as pl
        >>> cluster, load = pl.Cluster.from_counts({"L4": 2}, 24, 1), pl.Workload(2048, 1, "decode")
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), link_units="tokens")
        >>> result = pl.solve(problem)
        >>> expected = problem.costs.expected_rate(problem, result.evaluation)
        >>> expected.low < result.throughput < expected.high
        True
        """
        from pipelab.hardware.roofline.expected_rates import expected_rate

        return expected_rate(problem, evaluation)
