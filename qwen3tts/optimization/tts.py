"""The optimization half of TTS: plans on a loaded model."""

from abc import ABC, abstractmethod
from typing import overload

from qwen3tts.errors import OptimizationStateError
from qwen3tts.optimization.manager import OptimizationManager
from qwen3tts.optimization.manifest import Manifest
from qwen3tts.optimization.passes import Evidence, PassContext, check_mode
from qwen3tts.optimization.registry import PassRegistry, default_registry
from qwen3tts.optimization.result import OptimizationResult
from qwen3tts.runtime.engine import Engine
from qwen3tts.runtime.protocols import Runtime
from qwen3tts.runtime.turns import Turns


class Optimizable(ABC):
    """What TTS offers to passes. TTS has the parts that it names."""

    turns: Turns
    _optimization: OptimizationManager

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """What speaks; raises Qwen3TTSError after close()."""

    @abstractmethod
    def _use(self, runtime: Runtime) -> None:
        """Speaks with this runtime from now on."""

    @classmethod
    def available_optimization_passes(cls) -> tuple[str, ...]:
        """Names of all passes, sorted, those of other packages among them. Not a promise that each works here."""
        return default_registry.names()

    def apply_optimization_plan(
        self,
        passes: object,
        *,
        mode: str = "inference",
        context: PassContext | None = None,
        registry: PassRegistry | None = None,
    ) -> OptimizationResult:
        """Switches passes on: a name, an OptimizationPass, a (name, options) pair, or several of these in order.

        All of them are checked before the first change, and all are undone if one fails. Waits for calls in other
        threads. context: what the plan is for; None: this model, with streaming. registry: where names are looked up.

        Raises OptimizationPlanError or OptionError for what was passed (both ValueErrors),
        OptimizationCompatibilityError where a pass cannot work, OptimizationStateError (a RuntimeError) while a plan
        is active or a stream is open, OptimizationApplicationError when a pass failed and the plan was undone."""
        with self.turns:
            model = self._idle("apply").runtime
            result = self._optimization.apply(model, passes, mode=mode, context=context, registry=registry)
            self._use(result.model)
            return result

    def optimization_result(self, mode: str = "inference") -> OptimizationResult | None:
        """The active plan, None without one."""
        with self.turns:
            return self._optimization.result(mode)

    @overload
    def optimization_manifest(self, mode: None = None) -> dict[str, Manifest]: ...

    @overload
    def optimization_manifest(self, mode: str) -> Manifest | None: ...

    def optimization_manifest(self, mode: str | None = None) -> Manifest | None | dict[str, Manifest]:
        """The record of the active plan of a mode, None without one; without a mode: of every active plan, by mode."""
        if mode is not None:
            check_mode(mode)
        with self.turns:
            manifests = self._optimization.manifests()
        return manifests if mode is None else manifests.get(mode)

    def restore_optimization_plan(self, mode: str = "inference") -> Runtime:
        """Takes the active plan back, pass by pass from the last to the first, and returns the runtime as it was.

        Raises OptimizationStateError if no plan is active, a pass cannot be undone or a stream is open, and
        OptimizationApplicationError if a pass failed to undo itself: the model was put back without its help then."""
        with self.turns:
            engine = self._idle("restore")
            original = self._optimization.original(mode)
            try:
                self._optimization.restore(mode)
            finally:
                if self._optimization.result(mode) is None:
                    self._use(original)
            return engine.runtime

    def record_optimization_evidence(self, pass_id: str, evidence: Evidence | str, mode: str = "inference") -> None:
        """Notes the result of a pass's check, or why there is none, in the manifest of the active plan."""
        with self.turns:
            self._optimization.record_evidence(mode, pass_id, evidence)

    def _idle(self, what: str) -> Engine:
        """The engine, if nothing is being spoken. Codec states that it kept are closed: the codec may change."""
        engine = self.engine
        if self._optimization.busy:
            raise OptimizationStateError(
                f"Cannot {what} a plan while another one is being applied or restored; a pass must not do that."
            )
        if self.turns.nested:
            raise OptimizationStateError(f"Cannot {what} a plan while this thread is speaking, in a progress callback.")
        turns = self.turns
        streams = max(len(turns.players), len(engine.runtime.frames.open_slots()), len(turns.open_streams()))
        if streams:
            raise OptimizationStateError(
                f"Cannot {what} a plan while {streams} stream{'s are' if streams > 1 else ' is'} open: finish or close "
                "them first."
            )
        engine.forget_references()
        return engine

    def _end_streams(self) -> int:
        """Closes the streams that speak, which is how many? Those that still wait for text are no part of the model,
        and other threads may open them at any moment."""
        speaking = [stream for stream in self.turns.open_streams() if stream.started]
        for stream in speaking:
            stream.close()
        return len(speaking)
