"""How an `Estimator` runs: where it keeps its model, how often it saves, and which task of which cluster this process is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from ....distribute.resolvers import roles
from ....distribute.resolvers.roles import task_index, tf_config
from ....distribute.strategy import Strategy
from ....graph.core.errors import UnimplementedError
from ....placer.cluster.spec import ClusterSpec, task_addresses
from ....placer.rules.replica_device_setter import replica_device_setter
from ....runtime.config import ConfigProto, check_config

DEFAULT: Any = object()
SAVE_S = 600  # TensorFlow's default


class DistributeConfig(NamedTuple):
    """Which strategies train and evaluate: what `RunConfig(experimental_distribute=...)` takes.

    Attributes:
        train_distribute: the strategy that trains; None: none.
        eval_distribute: the one that evaluates.
        remote_cluster: not supported: run the same program in each task instead, with TF_CONFIG.
    """

    train_distribute: Strategy | None = None
    eval_distribute: Strategy | None = None
    remote_cluster: Any = None


class RunConfig:
    """Settings of an `Estimator`. The cluster, and this task's place in it, come from TF_CONFIG:

        {"cluster": {"chief": [..], "worker": [..], "ps": [..]}, "task": {"type": "worker", "index": 0}}

    Where no chief is named, the first worker is chief. The evaluator is not part of the cluster. Without TF_CONFIG: one process.

    Args:
        model_dir: the folder of checkpoints and summaries, which all tasks must see; None: that of TF_CONFIG, or one for the time
            being.
        tf_random_seed: the seed of the graph.
        save_summary_steps: how often to write summaries; None: never.
        save_checkpoints_steps: how often to save; at most one of them; default: every 600 s; both None: never.
        save_checkpoints_secs: how often to save; at most one of them; default: every 600 s; both None: never.
        session_config: options of sessions; None: a session sees this task and the parameter servers, and places softly.
        keep_checkpoint_max: how many checkpoints to keep; 0 or None: all.
        keep_checkpoint_every_n_hours: and one in so many hours for good.
        log_step_count_steps: how often to tell loss and steps per second; None: never.
        train_distribute: strategies.
        eval_distribute: strategies.
        experimental_distribute: both, as a `DistributeConfig`.
        device_fn: a device function for the graph; None: where there are parameter servers, a `replica_device_setter`.
        protocol: accepted: "grpc" or None.
        experimental_max_worker_delay_secs: accepted: workers wait for what they need, and not for a time.
        session_creation_timeout_secs: how long workers wait for the chief.
        checkpoint_save_graph_def: write the graph beside each checkpoint, as text.

    Raises:
        ValueError: two ways to save, two ways to name a strategy, or a TF_CONFIG that contradicts itself.
        UnimplementedError: a `remote_cluster`.

    >>> config = RunConfig("/shared/run", save_checkpoints_steps=500, train_distribute=dt.distribute.MirroredStrategy())
    """

    def __init__(
        self,
        model_dir: str | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = DEFAULT,
        save_checkpoints_secs: Any = DEFAULT,
        session_config: ConfigProto | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Strategy | None = None,
        device_fn: Callable[[Any], Any] | None = None,
        protocol: str | None = None,
        eval_distribute: Strategy | None = None,
        experimental_distribute: DistributeConfig | None = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,
    ) -> None:
        if save_checkpoints_steps is DEFAULT and save_checkpoints_secs is DEFAULT:
            save_checkpoints_steps, save_checkpoints_secs = None, SAVE_S
        elif save_checkpoints_secs is DEFAULT:
            save_checkpoints_secs = None
        elif save_checkpoints_steps is DEFAULT:
            save_checkpoints_steps = None
        if save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError("`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set.")
        if protocol not in (None, "grpc"):
            raise ValueError(f"protocol must be None or 'grpc', not {protocol!r}")
        for name, value, least in (
            ("save_summary_steps", save_summary_steps, 1),
            ("save_checkpoints_steps", save_checkpoints_steps, 1),
            ("save_checkpoints_secs", save_checkpoints_secs, 0),
            ("keep_checkpoint_max", keep_checkpoint_max, 0),
            ("log_step_count_steps", log_step_count_steps, 1),
            ("session_creation_timeout_secs", session_creation_timeout_secs, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} should be >= {least}, not {value!r}")
        self._settings: dict[str, Any] = {
            "tf_random_seed": tf_random_seed,
            "save_summary_steps": save_summary_steps,
            "save_checkpoints_steps": save_checkpoints_steps,
            "save_checkpoints_secs": save_checkpoints_secs,
            "session_config": session_config,
            "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_every_n_hours": keep_checkpoint_every_n_hours,
            "log_step_count_steps": log_step_count_steps,
            "train_distribute": train_distribute,
            "device_fn": device_fn,
            "protocol": protocol,
            "eval_distribute": eval_distribute,
            "experimental_distribute": experimental_distribute,
            "experimental_max_worker_delay_secs": experimental_max_worker_delay_secs,
            "session_creation_timeout_secs": session_creation_timeout_secs,
            "checkpoint_save_graph_def": checkpoint_save_graph_def,
        }
        self._train_distribute, self._eval_distribute = _strategies(
            train_distribute, eval_distribute, experimental_distribute
        )
        check_config(session_config)
        environment = tf_config()
        if model_dir is None:
            model_dir = environment.get("model_dir") or None
        self._model_dir = None if model_dir is None else str(model_dir)
        self._service = environment.get("service")
        self._find_place(environment)

    def _find_place(self, environment: dict[str, Any]) -> None:
        """Which task of which cluster this is: what the strategy that trains says, or else TF_CONFIG."""
        resolver = None if self._train_distribute is None else self._train_distribute.cluster_resolver
        task = environment.get("task", {})
        cluster = dict(environment.get("cluster", {}))
        job, index = task.get("type"), task.get("index")
        if resolver is not None and resolver.cluster_spec():
            cluster = resolver.cluster_spec().as_dict()
            job, index = resolver.task_type, resolver.task_id
        if "master" in cluster:  # the old name
            cluster["chief"] = cluster.pop("master")
        job = "chief" if job == "master" else job
        self._task_type = str(job) if job is not None else "worker"
        self._task_id = task_index(index or 0)
        cluster.pop(roles.EVALUATOR, None)
        if self._task_type == roles.EVALUATOR:
            cluster = {}
        elif cluster and job is None:
            raise ValueError(
                'If "cluster" is set in TF_CONFIG, task type and index must be set too: '
                '{"task": {"type": "worker", "index": 0}}'
            )
        self._cluster_spec = ClusterSpec(cluster)
        if self._cluster_spec:
            roles.check_role(self._cluster_spec, self._task_type, self._task_id)

    # --- the cluster ------------------------------------------------------------------------------------------------

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The cluster; empty for one process, and for the evaluator."""
        return self._cluster_spec

    @property
    def task_type(self) -> str:
        """The job of this task: chief, worker, ps, or evaluator; worker by default."""
        return self._task_type

    @property
    def task_id(self) -> int:
        """Its index in the job."""
        return self._task_id

    @property
    def is_chief(self) -> bool:
        """Whether this task saves checkpoints and writes summaries."""
        if self._task_type == roles.EVALUATOR:
            return False
        return roles.is_chief(self._cluster_spec or None, self._task_type, self._task_id)

    @property
    def num_ps_replicas(self) -> int:
        """How many parameter servers there are."""
        return self._count("ps")

    @property
    def num_worker_replicas(self) -> int:
        """How many chiefs and workers there are."""
        return self._count("chief") + self._count("worker") if self._cluster_spec else 1

    @property
    def global_id_in_cluster(self) -> int | None:
        """This task's number among all of the cluster: the chief, workers, then parameter servers; None for the evaluator."""
        if self._task_type == roles.EVALUATOR:
            return None
        before = {"chief": 0, "worker": self._count("chief"), "ps": self._count("chief") + self._count("worker")}
        return before[self._task_type] + self._task_id

    def _count(self, job: str) -> int:
        return self._cluster_spec.num_tasks(job) if job in self._cluster_spec.jobs else 0

    @property
    def master(self) -> str:
        """The target of this task's sessions: its own server; '' for a session in this process."""
        strategy = self._train_distribute
        if strategy is not None and strategy.session_target:
            return strategy.session_target
        if not self._cluster_spec or self._count(self._task_type) == 0 or len(task_addresses(self._cluster_spec)) <= 1:
            return ""
        return f"zmq://{self._cluster_spec.task_address(self._task_type, self._task_id)}"

    @property
    def evaluation_master(self) -> str:
        """The target of sessions that evaluate: '', this process."""
        return ""

    @property
    def session_config(self) -> ConfigProto:
        """A copy of the options of sessions."""
        given: ConfigProto | None = self._settings["session_config"]
        if given is not None:
            return copy.deepcopy(given)
        config = ConfigProto(allow_soft_placement=True)
        if self.num_ps_replicas and self._task_type in ("chief", "worker"):
            config.device_filters = ["/job:ps", f"/job:{self._task_type}/task:{self._task_id}"]
        return config

    @property
    def device_fn(self) -> Callable[[Any], Any] | None:
        """The device function of graphs; where there are parameter servers, and no strategy, they get the variables."""
        given: Callable[[Any], Any] | None = self._settings["device_fn"]
        if given is not None or not self.num_ps_replicas or self._train_distribute is not None:
            return given
        task = f"/job:{self._task_type}/task:{self._task_id}"
        return replica_device_setter(worker_device=task, cluster=self._cluster_spec)

    # --- settings ---------------------------------------------------------------------------------------------------

    @property
    def model_dir(self) -> str | None:
        """The folder of checkpoints and summaries."""
        return self._model_dir

    @property
    def train_distribute(self) -> Strategy | None:
        """The strategy that trains."""
        return self._train_distribute

    @property
    def eval_distribute(self) -> Strategy | None:
        """The strategy that evaluates."""
        return self._eval_distribute

    @property
    def service(self) -> Any:
        """What TF_CONFIG says under `service`."""
        return self._service

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def replace(self, **kwargs: Any) -> RunConfig:
        """A copy with other settings: the arguments of `RunConfig`.

        Raises:
            ValueError: a setting of another name.
        """
        known = {"model_dir", *self._settings}
        if set(kwargs) - known:
            raise ValueError(
                f"Replacing {', '.join(sorted(set(kwargs) - known))} is not supported: there are {sorted(known)}"
            )
        if kwargs.get("save_checkpoints_steps") is not None:
            kwargs.setdefault("save_checkpoints_secs", None)
        elif kwargs.get("save_checkpoints_secs") is not None:
            kwargs.setdefault("save_checkpoints_steps", None)
        return RunConfig(**({"model_dir": self._model_dir} | self._settings | kwargs))

    def local(self) -> RunConfig:
        """The same for a session of this process that has nothing to do with the cluster: one that evaluates, or predicts."""
        alone = copy.copy(self)
        if self._cluster_spec:
            alone._cluster_spec, alone._train_distribute = ClusterSpec({}), None
            alone._settings = self._settings | {"device_fn": None}
        return alone

    def __repr__(self) -> str:
        place = f"/job:{self._task_type}/task:{self._task_id}" if self._cluster_spec else self._task_type
        return f"<dt.estimator.RunConfig of {place}, model_dir={self._model_dir!r}>"


def _strategies(train: Any, evaluate: Any, both: DistributeConfig | None) -> tuple[Strategy | None, Strategy | None]:
    if both is None:
        return train, evaluate
    if train is not None or evaluate is not None:
        raise ValueError(
            "Either `train_distribute`/`eval_distribute` or `experimental_distribute` can be set, not both: "
            "DistributeConfig has fields for both strategies"
        )
    if both.remote_cluster is not None:
        raise UnimplementedError(
            None, None,
            "DistributeConfig(remote_cluster=...): one client does not drive estimators of other tasks. Run the same program in "
            "each task, with TF_CONFIG; or train from one client with dt.distribute.ClusterCoordinator",
        )  # fmt: skip
    return both.train_distribute, both.eval_distribute


__all__ = ["DistributeConfig", "RunConfig"]
