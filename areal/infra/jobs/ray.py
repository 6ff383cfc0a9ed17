"""The backend Ray: placement and starting of runners, and nothing else. No tensor and no batch goes through Ray.

One placement group per site (a role, or roles that share nodes), its bundles on different nodes; one actor per bundle,
which starts its runners and holds their lifelines. The exit of a runner and the leases of the job decide whether it
lives: Ray's tables are seconds late.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError, UsageError
from areal.infra.jobs.backend import JobOutcome, runner_command
from areal.infra.jobs.driver import drive
from areal.infra.jobs.local import LocalBackend, own_identity
from areal.infra.jobs.order import LOST
from areal.infra.launch.ranks import LogFollower
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.jobs.driver import RunnerHandle
    from areal.infra.jobs.files import JobFolder
    from areal.infra.jobs.plan import JobPlan, Site

_logger = getLogger(__name__)
_STRATEGY: Final = "STRICT_SPREAD"
_POLL_SECONDS: Final = 0.5
_REMIND_SECONDS: Final = 30.0
_CALL_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 5.0
_END_SECONDS: Final = 20.0
_GIB: Final = 2**30


class RayBackend:
    """`JobBackend` of a Ray cluster. `launch` waits for the end of the job; its end ends the runners."""

    def preview(self, plan: JobPlan) -> str:
        """See `JobBackend.preview`: the placement groups and the command of each bundle."""
        lines = []
        for site in plan.sites:
            bundle = json.dumps(bundle_of(plan, site))
            lines.append(f"# {site.name}: placement group {_STRATEGY} of {site.num_nodes} x {bundle}")
            lines += [
                shlex.join(runner_command(plan, role.name, node=node, life=0))
                for role in site.roles
                for node in range(role.num_nodes)
            ]
        return "\n".join(lines)

    def check(self, plan: JobPlan) -> None:
        """See `JobBackend.check`. Connects to the cluster, and stays connected."""
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "Ray is not installed here", where="job.backend", fix="pip install 'areal[ray]'; --dry-run needs no Ray"
            )
        _connect(plan)
        _refuse_what_never_fits(plan)

    def launch(self, plan: JobPlan, folder: JobFolder, stop: StopRequest, show: Callable[[str], None]) -> JobOutcome:
        """See `JobBackend.launch`."""
        import ray

        followers: list[LogFollower] = []

        def follow() -> None:
            for follower in followers:
                follower.pass_on()

        @contextmanager
        def place(life: int) -> Iterator[Sequence[RunnerHandle]]:
            followers[:] = [LogFollower(folder.life(life) / "runners" / "trainer-0.log", show)]
            with _placement(plan, folder, life, stop) as runners:
                yield runners

        folder.set_state("submitted", identity=own_identity(), backend="ray")
        try:
            return drive(plan, folder, stop, place, follow)
        finally:
            ray.shutdown()

    def state(self, plan: JobPlan, folder: JobFolder) -> str:
        """See `JobBackend.state`: whoever launched holds all actors, so that its life is the job's."""
        return LocalBackend().state(plan, folder)

    def cancel(self, plan: JobPlan, folder: JobFolder) -> None:
        """See `JobBackend.cancel`: a request in the job's folder, which whoever launched it sees on any machine."""
        LocalBackend().cancel(plan, folder)


def bundle_of(plan: JobPlan, site: Site) -> dict[str, float]:
    """Return what one node of a site needs, in Ray's words."""
    gpus, cpus, memory_gb, _ = site.shape
    bundle: dict[str, float] = {"CPU": cpus}
    if gpus:
        bundle[str(plan.ray["gpu_resource"])] = gpus
    if memory_gb:
        bundle["memory"] = memory_gb * _GIB
    return bundle


def _connect(plan: JobPlan) -> None:
    import ray

    if ray.is_initialized():
        return
    # Ray takes SIGTERM for itself, by which this process is asked to let the job save.
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=plan.ray["address"],
            namespace=plan.ray["namespace"] or f"areal-{plan.id}",
            log_to_driver=False,
            logging_level="warning",
        )
    except (ConnectionError, RuntimeError) as error:
        raise UsageError(
            f"job.ray.address is {plan.ray['address']}, and no cluster answers there: {error}",
            where="job.ray.address",
            fix="start one (ray start --head), give HOST:PORT, or use local",
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_what_never_fits(plan: JobPlan) -> None:
    """Raise UsageError, with a table of nodes, when no nodes of the cluster could ever hold a role: Ray would wait for
    ever and say nothing.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    for site in plan.sites:
        bundle = bundle_of(plan, site)
        fitting = sum(all(node["Resources"].get(name, 0) >= need for name, need in bundle.items()) for node in nodes)
        if fitting < site.num_nodes:
            rows = [f"  {node['NodeManagerAddress']:<16} {_resources(node['Resources'])}" for node in nodes]
            raise UsageError(
                f"role {site.name} needs {site.num_nodes} nodes with {_resources(bundle)} each; {fitting} of "
                f"{len(nodes)} could ever have that:\n" + "\n".join(rows),
                where=f"job.roles.{site.roles[0].name}",
                fix=f"change count, per_node or the needs of job.roles.{site.roles[0].name}, or add nodes",
            )


def _resources(found: dict[str, float]) -> str:
    """Return resources for people, without Ray's own names for nodes."""
    shown = {name: value for name, value in sorted(found.items()) if ":" not in name and "object_store" not in name}
    return ", ".join(
        f"{name} {value / _GIB:.1f} GiB" if name == "memory" else f"{name} {value:g}" for name, value in shown.items()
    )


@contextmanager
def _placement(plan: JobPlan, folder: JobFolder, life: int, stop: StopRequest) -> Iterator[Sequence[RunnerHandle]]:
    """Hold the nodes of all roles, with a runner on each; give everything back at the end."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    groups: dict[Site, Any] = {}
    runners: list[_RayRunner] = []
    actors: list[Any] = []
    try:
        for site in plan.sites:
            groups[site] = placement_group([bundle_of(plan, site)] * site.num_nodes, strategy=_STRATEGY)
        if not _wait_until_placed(plan, folder, groups, stop):
            yield []
            return
        actor = ray.remote(_actor_class())
        logs = folder.life(life) / "runners"
        logs.mkdir(parents=True, exist_ok=True)
        for site, group in groups.items():
            bundle = bundle_of(plan, site)
            others = {name: need for name, need in bundle.items() if name not in {"CPU", "GPU", "memory"}}
            for node in range(site.num_nodes):
                strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
                held = actor.options(
                    num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), memory=bundle.get("memory"),
                    resources=others, scheduling_strategy=strategy, max_restarts=0,
                ).remote()  # fmt: skip
                actors.append(held)
                for role in site.roles:
                    name = f"{role.name}-{node}"
                    command = runner_command(plan, role.name, node=node, life=life)
                    started = held.start.remote(name, command, str(logs / f"{name}.log"))
                    runners.append(_RayRunner(name, held, started))
        for runner in runners:
            runner.begin()
        yield runners
    finally:
        for runner in runners:
            runner.end()
        for held in actors:
            ray.kill(held)
        for group in groups.values():
            remove_placement_group(group)


def _wait_until_placed(plan: JobPlan, folder: JobFolder, groups: dict[Site, Any], stop: StopRequest) -> bool:
    """Wait for all groups; return False when asked to stop. Raises EngineError after ray.place_seconds."""
    import ray

    begun = reminded = time.monotonic()
    missing = {group.ready(): site for site, group in groups.items()}
    while missing:
        done, _ = ray.wait(list(missing), timeout=_POLL_SECONDS)
        for one in done:
            missing.pop(one)
        if stop.requested or folder.cancelled:
            return False
        wanted = "; ".join(f"{site.name}: {_resources(bundle_of(plan, site))}" for site in missing.values())
        text = f"waiting for {wanted} per node; free in the whole cluster: {_resources(ray.available_resources())}"
        if missing and time.monotonic() - begun > plan.ray["place_seconds"]:
            raise EngineError(
                f"not placed within {plan.ray['place_seconds']:g} s: {text}",
                where="job.ray.place_seconds",
                fix="wait longer, or ask for less",
            )
        if missing and time.monotonic() - reminded > _REMIND_SECONDS:
            reminded = time.monotonic()
            _logger.warning("%s", text)
    return True


class _RayRunner:
    """`RunnerHandle` of a runner that an actor holds."""

    def __init__(self, name: str, actor: Any, started: Any) -> None:
        self.name = name
        self._actor, self._started = actor, started
        self._asked = self._answered = time.monotonic()
        self._code: int | None = None

    def begin(self) -> None:
        """Wait until it is started; an actor that died before that shows in `poll`."""
        import ray

        try:
            ray.get(self._started, timeout=_CALL_SECONDS)
        except ray.exceptions.RayError as error:
            _logger.warning("%s: %s", self.name, str(error).splitlines()[0])

    def poll(self) -> int | None:
        import ray

        now = time.monotonic()
        if self._code is not None or now - self._asked < _POLL_SECONDS:
            return self._code
        self._asked = now
        try:
            self._code = ray.get(self._actor.poll.remote(self.name), timeout=_ANSWER_SECONDS)
            self._answered = now
        except ray.exceptions.GetTimeoutError:
            if now - self._answered > _CALL_SECONDS:
                self._code = LOST
        except ray.exceptions.RayError:
            self._code = LOST
        return self._code

    def send(self, number: int) -> None:
        self._actor.send.remote(self.name, number)

    def end(self) -> None:
        """Close the lifeline, and wait."""
        import ray

        try:
            ray.get(self._actor.end.remote(self.name, _END_SECONDS), timeout=_END_SECONDS + _ANSWER_SECONDS)
        except ray.exceptions.RayError:
            _logger.debug("%s is gone already", self.name)


def _actor_class() -> type:
    """Return the class of actors. Defined here so that it is sent as it is: it needs nothing but Python on a node."""

    class HeldRunner:
        """Starts the runners of a node and holds their lifelines: standard inputs, which end with this process."""

        def __init__(self) -> None:
            self.processes: dict[str, Any] = {}

        def start(self, name: str, command: list[str], log: str) -> None:
            import subprocess

            with open(log, "ab") as file:
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
                )  # fmt: skip

        def poll(self, name: str) -> int | None:
            code: int | None = self.processes[name].poll()
            return code

        def send(self, name: str, number: int) -> None:
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(number)

        def end(self, name: str, seconds: float) -> None:
            import subprocess

            process = self.processes[name]
            process.stdin.close()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    return HeldRunner
