"""`SyncReplicasOptimizer`: synchronous training, which averages the gradients of all workers.

Each variable has an accumulator on its device, and the global step has a queue of tokens:

    worker:  read variables, compute gradients ── apply_grad(local step) ──► accumulators
             then wait for a token ◄── tokens ──┐   local step := token
    chief (one thread, for ever):               │
             take_grad(n) of every accumulator ─┴► update, global step + 1, put in one token per worker

A worker waits in the token queue before its gradients are counted, and the chief enqueues tokens when n gradients were counted. Otherwise
a fast worker could take the token of a worker that does not wait yet, send its next gradients, and trigger the next update without that
worker. So, without initial tokens and with as many workers as gradients per update, every update has one gradient of every worker. It
equals an update of one process with all their batches.

A worker starts to wait when the task of the global step has its gradients. Its gradients for other tasks may still be in transit, because
an update needs all of them. The worker's step ends when these have arrived.

A gradient whose local step is below its accumulator's step is stale: it was computed from old weights, and it is dropped. With more workers
than gradients per update, the gradients of the slowest workers are dropped (backup replicas, Chen et al., 2016, arXiv:1604.00981). With
fewer workers, each worker gets several tokens per update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...graph.core.build import convert
from ...graph.core.default_graph import GraphKeys
from ...graph.core.dtypes import float32
from ...graph.core.graph import Node, Tensor
from ...graph.ops.array.creation import fill
from ...graph.ops.array.identity_and_placeholders import group, no_op
from ...graph.ops.state.accumulators import (
    ConditionalAccumulator,
    ConditionalAccumulatorBase,
    SparseConditionalAccumulator,
    dequeue_counted,
)
from ...graph.ops.state.queue_api import FIFOQueue
from ...graph.ops.state.variables import assign
from ...graph.tensors.indexed_slices import IndexedSlices
from ...graph.variables.store import global_variables, report_uninitialized_variables
from ...graph.variables.variable import Variable
from ..loops.queue_runner import QueueRunner
from ..loops.session_manager import not_ready_reason
from ..loops.session_run_hook import SessionRunHook
from ..optimizers.optimizer import Optimizer, WrapperOptimizer


class SyncReplicasOptimizer(WrapperOptimizer):
    """Synchronous data-parallel training. The wrapped optimizer applies the average of all replicas' gradients.

    Args:
        opt: the optimizer that applies the averages.
        replicas_to_aggregate: number of gradients per update.
        total_num_replicas: number of replicas; None: `replicas_to_aggregate`. Additional replicas are backups.
        variable_averages: an `ExponentialMovingAverage` to update after each update, or None.
        variables_to_average: the variables that it averages.
        use_locking: see `Optimizer`.
        name: name of its nodes.

    >>> opt = SyncReplicasOptimizer(GradientDescentOptimizer(0.1), replicas_to_aggregate=4)
    >>> train_op = opt.minimize(loss, global_step=get_or_create_global_step())
    >>> hook = opt.make_session_run_hook(is_chief)
    >>> with MonitoredTrainingSession(target, is_chief, hooks=[hook]) as sess:
    ...     while not sess.should_stop():
    ...         sess.run(train_op)
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Sequence[Any] | None = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(opt, use_locking, name)
        self._count = replicas_to_aggregate
        self._total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        self._tokens_per_step = max(self._total, self._count)
        self._averages = variable_averages
        self._to_average = variables_to_average
        self._applied = False
        self._global_step: Any = None
        self._tokens: FIFOQueue | None = None
        self._runner: QueueRunner | None = None
        self.local_step_init_op: Any = None
        """Sets the replica's local step to the global step. Replicas other than the chief run it."""
        self.chief_init_op: Any = None
        """Sets the chief's local step and the steps of the accumulators to the global step."""
        self.ready_for_local_init_op: Any = None
        """Names of global variables without a value. The two init ops may run when there are none."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns the gradients of this replica, from the wrapped optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """Returns a node that sends this replica's gradients to the accumulators, and waits for the next update.

        Args:
            grads_and_vars: pairs as `compute_gradients` returns them.
            global_step: the variable that counts updates.
            name: accepted without effect.

        Raises:
            ValueError: there are no variables, `global_step` is missing, or a gradient has an unknown type.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        self._global_step = global_step
        graph = pairs[0][1].graph
        with graph.as_default():
            anchor = no_op()  # on this replica's device; a device function for variables does not move it
            with graph.colocate_with(anchor):
                local_step = Variable(
                    convert(0, global_step.dtype.base),
                    trainable=False,
                    collections=[GraphKeys.LOCAL_VARIABLES],
                    name="sync_rep_local_step",
                )
                # `local_step.assign` would return a reference.
                self.local_step_init_op = assign(local_step, global_step.read_value()).op
            self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
            with graph.name_scope(self._name):
                return self._build(graph, pairs, local_step)

    def _build(self, graph: Any, pairs: Sequence[tuple[Any, Any]], local_step: Any) -> Node:
        step = self._global_step
        given: list[Node] = []
        elsewhere: list[Node] = []
        takes: list[tuple[Callable[[int], Any] | None, Any]] = []
        accumulators: list[tuple[ConditionalAccumulatorBase, str]] = []
        for grad, var in pairs:
            with graph.device(var.device):
                if grad is None:
                    takes.append((None, var))
                    continue
                shared = f"{var.name}/grad_accum"
                accumulator: ConditionalAccumulatorBase
                if isinstance(grad, IndexedSlices):
                    accumulator = sparse = SparseConditionalAccumulator(grad.dtype, var.get_shape(), shared)
                    give = sparse.apply_indexed_slices_grad(grad, local_step=local_step)
                    takes.append((sparse.take_indexed_slices_grad, var))
                elif isinstance(grad, Tensor):
                    accumulator = dense = ConditionalAccumulator(grad.dtype, var.get_shape(), shared)
                    give = dense.apply_grad(grad, local_step=local_step)
                    takes.append((dense.take_grad, var))
                else:
                    raise ValueError("Unknown grad type!")
                (given if var.device == step.device else elsewhere).append(give)
                accumulators.append((accumulator, var.device))
        with graph.device(step.device):
            in_line = ConditionalAccumulator(float32, (), "sync_token_q/in_line")
            accumulators.append((in_line, step.device))
            all_in_line = in_line.take_grad(self._count).op
        averaged: list[tuple[Any, Any]] = []
        for take, var in takes:
            # On the step's device a replica gives its gradients before it stands in line: once all do, no take waits.
            after = [all_in_line] if var.device == step.device else []
            with graph.device(var.device), graph.control_dependencies(after):
                averaged.append((take and take(self._count), var))
        with graph.device(step.device):
            with graph.name_scope(None):  # variables have the same names as without this optimizer
                update = self._opt.apply_gradients(averaged, step)
            tokens = self._tokens = FIFOQueue(
                -1, step.dtype.base, shapes=[()], name="sync_token_q", shared_name="sync_token_q"
            )
            # A replica that adds its gradients in the memory of the step's task then tells it once, not for each of them.
            with graph.control_dependencies(given or elsewhere), graph.colocate_with(local_step.op):
                all_given = no_op()
            with graph.control_dependencies([all_given]):
                token = dequeue_counted(tokens, in_line, local_step)
            train_op: Node = assign(local_step, token).op
            if given and elsewhere:
                train_op = group(train_op, *elsewhere)
            with graph.control_dependencies([update, all_in_line]):
                hand_out = tokens.enqueue_many([fill([self._tokens_per_step], step.read_value())])
            if self._averages is not None:
                with graph.control_dependencies([hand_out]):
                    hand_out = self._averages.apply(self._to_average)
            self._runner = QueueRunner(tokens, [hand_out])
        init = [self.local_step_init_op]
        for accumulator, device in accumulators:
            with graph.device(device):
                init.append(accumulator.set_global_step(step.read_value(), name="SetGlobalStep"))
        self.chief_init_op = group(*init)
        self._applied = True
        return train_op

    def get_chief_queue_runner(self) -> QueueRunner:
        """The `QueueRunner` that applies updates and enqueues tokens. Only the chief runs it.

        Raises:
            ValueError: `apply_gradients` was not called.
        """
        if not self._applied or self._runner is None:
            raise ValueError("Should be called after apply_gradients().")
        return self._runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Any:
        """A node that enqueues the first tokens. The chief runs it once, before its queue runner.

        Args:
            num_tokens: number of tokens; -1: `replicas_to_aggregate`. At least `replicas_to_aggregate - total_num_replicas`.

        Raises:
            ValueError: `apply_gradients` was not called, or `num_tokens` is too small.
        """
        if not self._applied or self._tokens is None:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        needed = self._count - self._total
        if num_tokens == -1:
            num_tokens = self._count
        elif num_tokens < needed:
            raise ValueError(f"Too few tokens to finish the first step: {num_tokens} (given) vs {needed} (needed)")
        if num_tokens <= 0:
            return no_op(name="no_init_tokens")
        with self._global_step.graph.device(self._global_step.device):
            return self._tokens.enqueue_many([fill([num_tokens], self._global_step.read_value())])

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """A hook that initializes this optimizer's state and, on the chief, starts the updates."""
        return _Hook(self, is_chief, num_tokens)


class _Hook(SessionRunHook):
    """Implements `SyncReplicasOptimizer.make_session_run_hook`.

    After a task died, replicas may wait for the token of an update that never happens, because some of their gradients are lost. So when
    training resumes, the chief enqueues at least one token per replica.
    """

    def __init__(self, opt: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._opt, self._is_chief, self._num_tokens = opt, is_chief, num_tokens
        self._init_tokens: Any = None
        self._tokens_again: Any = None
        self._step: Any = None
        self._sessions = 0

    def begin(self) -> None:
        if not self._opt._applied:
            raise ValueError("SyncReplicasOptimizer.apply_gradient should be called before using the hook.")
        if self._is_chief:
            self._init_tokens = self._opt.get_init_tokens_op(self._num_tokens)
            self._step = self._opt._global_step.read_value()
            self._tokens_again = self._opt.get_init_tokens_op(max(self._num_tokens, self._opt._total, self._opt._count))

    def after_create_session(self, session: Any, coord: Any) -> None:
        problem = not_ready_reason(self._opt.ready_for_local_init_op, session, "Model not ready for local init")
        if problem:
            raise RuntimeError(
                f"Init operations did not make model ready for SyncReplicasOptimizer local_init. {problem}"
            )
        if not self._is_chief:
            session.run(self._opt.local_step_init_op)
            return
        session.run(self._opt.chief_init_op)
        self._sessions += 1
        goes_on = self._sessions > 1 or session.run(self._step) > 0
        session.run(self._tokens_again if goes_on else self._init_tokens)
        self._opt.get_chief_queue_runner().create_threads(session, coord=coord, daemon=True, start=True)
