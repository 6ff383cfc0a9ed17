"""Images on inference servers: one placeholder each and every pixel travel, and what the server made of them is
compared for every call. The server is the double, whose model is a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import contract_engines as engines
import pytest
import torch

from areal.algorithm.packing import collate
from areal.api import ConfigError, EngineError, FaultError, FaultKind, GenerationConfig, ImageRef, ModelRequest
from areal.dataset.encoding import character_tokenizer
from areal.engine.checks import RequestLimits
from areal.engine.config import ServerEngineConfig, TrainEngineConfig, VisionTrainConfig, VLLMConfig
from areal.engine.hf import loading
from areal.engine.hf.on_disk import checkpoint_tensors
from areal.engine.server.client import is_healthy
from areal.engine.server.engine import ServerEngine
from areal.engine.server.errors import BrokenTokensError
from areal.engine.server.images import body_with_images, check_echo, contracted, png_url
from areal.engine.server.updates import ProbeReference
from areal.engine.sglang.adapter import SGLangAdapter
from areal.engine.train.engine import TrainingEngine
from areal.engine.vllm.adapter import VLLMAdapter
from areal.engine.vllm.launch import prepare
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand
from areal.infra.weights.files import FileCarrier
from areal.trainer.inference import probe_image
from tests.areal.engine.hf.test_hf_sampling import record
from tests.support.vision import LLAVA, QWEN2_5_VL, QWEN3_VL, noisy_image

CONTEXT = 256


class Subject:
    """A trained model, and an engine over a server that should have its weights."""

    def __init__(self, config, folder, *, pool, adapter=None, probed=True):
        settings = TrainEngineConfig(device="cpu", vision=VisionTrainConfig(train="all"))
        self.trainer = TrainingEngine(loading.from_config(config, seed=3), config=settings)
        self.model, self.pool = self.trainer.model, pool
        self.vision = self.model.vision
        start, images = probe_image(self.vision)
        self.engine = ServerEngine(
            adapter or VLLMAdapter(),
            pool=pool,
            carrier=FileCarrier(folder / "weights"),
            config=ServerEngineConfig(dtype="float32", max_seq_len=CONTEXT, stream_interval=2, wait_seconds=240.0),
            limits=RequestLimits(
                context=CONTEXT, vocab_size=32, eos_token_id=None, reads_images=True, refused=self.vision.refused
            ),
            to_hf=lambda state: checkpoint_tensors(self.model, state),
            weights=checkpoint_tensors(self.model, dict(self.model.named_parameters())),
            reference=ProbeReference(score=self.score, start=start, images=images) if probed else None,
        )

    def score(self, tokens, images):
        """Log-probabilities of all tokens but the first."""
        return self.trainer.forward_logp(self.batch(tokens, images))[0, 1:].tolist()

    @staticmethod
    def batch(tokens, images):
        from areal.api import StopReason, Trajectory

        learned = max((ref.end for ref in images), default=1)
        mask = [0] * learned + [1] * (len(tokens) - learned)
        versions = [0 if value else -1 for value in mask]
        return collate(
            [
                Trajectory(
                    tokens=list(tokens), loss_mask=mask, logprobs=[0.0] * len(mask), versions=versions,
                    turn_ids=versions, reward=0.0, stop_reason=StopReason.STOP, images=tuple(images),
                )
            ]
        )  # fmt: skip

    def request(self, *images, seed=0, new=6, **options):
        """Text, then images with text after each."""
        sizes = [(image.height, image.width) for image in images]
        ids, spans = self.vision.place([[3, 4], *([5 + n, 9] for n in range(len(images)))], sizes)
        refs = tuple(
            ImageRef(image=image, start=start, length=length)
            for image, (start, length) in zip(images, spans, strict=True)
        )
        gconfig = GenerationConfig(max_new_tokens=new, **options)
        return ModelRequest(input_ids=ids, gconfig=gconfig, images=refs, seed=seed)

    def generate(self, *requests):
        """All at once. Random weights sample placeholders now and then: such answers are left out."""

        async def main():
            return await asyncio.wait_for(
                asyncio.gather(*map(self.engine.agenerate, requests), return_exceptions=True), 60
            )

        found = []
        for request, result in zip(requests, asyncio.run(main()), strict=True):
            if isinstance(result, FaultError) and "the model sampled token" in str(result):
                continue
            if isinstance(result, BaseException):
                raise result
            found.append((request, result))
        return found

    def deviation(self, request, response):
        """Largest difference of recorded log-probabilities to those of the trainer."""
        batch = collate([record(request, response)])
        logp = self.trainer.forward_logp(batch, only_masked=True)
        return float((logp - batch.logp_behave)[batch.loss_mask > 0].abs().max())

    def change_weights(self, seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)

    def publish(self):
        from areal.api import WeightUpdateMeta

        state = dict(self.model.named_parameters())
        version = self.engine.version + 1
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=state))


class Pool(engines.RunningServer):
    """One server, given up for good when the engine asks for it."""

    def __init__(self, url):
        super().__init__(url)
        self.reasons = []

    def _announce(self):
        # It may be given up while it is admitted.
        with contextlib.suppress(EngineError):
            super()._announce()

    def evict(self, instance, reason):
        self.reasons.append(reason)
        threading.Thread(target=self._listener.server_retired, args=(instance.name, reason), daemon=True).start()


@contextlib.contextmanager
def served(config, folder, fork_server, fault="", **options):
    """A subject over a double."""
    port = engines.free_port()
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    command = engines.double_command("vllm", folder / "model", fault)(0, port)
    variables = {**command.environment, "AREAL_SERVER_INCARNATION": engines.RunningServer.incarnation}
    process = fork_server.start(command.arguments[1], command.arguments[2:], environment=variables)
    try:
        subject = Subject(config, folder, pool=Pool(f"http://127.0.0.1:{port}"), **options)
        with contextlib.closing(subject.engine):
            yield subject
    finally:
        process.kill()


def pictures(vision, *seeds):
    """Noise of final sizes, which differ where the model allows it."""
    sizes = [vision.final_size(16 + 8 * seed, 24) for seed in seeds]
    return [noisy_image(*size, seed=seed) for size, seed in zip(sizes, seeds, strict=True)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", [LLAVA, QWEN3_VL], ids=lambda config: config["model_type"])
def test_samples_have_the_trainers_log_probabilities_also_after_an_update(tmp_path, fork_server, config):
    with served(config, tmp_path, fork_server) as subject:
        subject.engine.wait_ready()
        one, two, three = pictures(subject.vision, 0, 1, 2)
        shown = [[one], [two, three], [], [one]]

        def requests():
            return [subject.request(*images, seed=seed) for seed in range(4) for images in shown]

        found = subject.generate(*requests())
        assert any(len(request.images) == 2 for request, _ in found)
        assert max(subject.deviation(*pair) for pair in found) < 1e-5
        subject.change_weights(1)
        assert max(subject.deviation(*pair) for pair in found) > 1e-3
        subject.publish()
        later = subject.generate(*requests())
        assert max(subject.deviation(*pair) for pair in later) < 1e-5


@pytest.mark.exhaustive
def test_equal_tokens_with_other_pixels_are_other_prompts(tmp_path, fork_server):
    with served(LLAVA, tmp_path, fork_server) as subject:
        subject.engine.wait_ready()
        one, other = pictures(subject.vision, 0, 1)
        found = subject.generate(*(subject.request(image, new=1) for image in (one, other)))
        assert len({tuple(request.input_ids) for request, _ in found}) == 1
        assert max(subject.deviation(*pair) for pair in found) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "words"), [("small", "placed images as .* its image processor differs"), ("no_echo", "does not say")]
)
def test_what_was_made_of_images_is_compared_on_every_call(tmp_path, fork_server, fault, words):
    with served(QWEN3_VL, tmp_path, fork_server, fault, probed=False) as subject:
        subject.engine.wait_ready()
        (image,) = pictures(subject.vision, 2)
        with pytest.raises(FaultError, match=words) as caught:
            subject.generate(subject.request(image))
        assert caught.value.kind is FaultKind.GENERATION_FAILED


@pytest.mark.exhaustive
def test_a_server_with_another_image_processor_is_given_up_before_its_first_request(tmp_path, fork_server):
    with served(QWEN3_VL, tmp_path, fork_server, "small") as subject:
        with pytest.raises(EngineError, match="no inference server is left"):
            subject.generate(subject.request())
        assert "its image processor differs" in subject.pool.reasons[0]


@pytest.mark.exhaustive
def test_a_tower_that_kept_old_weights_is_found_by_the_probe(tmp_path, fork_server):
    with served(QWEN3_VL, tmp_path, fork_server, "stale_tower") as subject:
        subject.engine.wait_ready()
        subject.change_weights(1)
        with pytest.raises(EngineError):
            subject.publish()
        assert "it does not use the weights it was sent" in subject.pool.reasons[0]


def test_programs_that_do_not_say_what_they_used_are_sent_no_images(tmp_path, fork_server):
    for adapter, words in ((SGLangAdapter(), "SGLang does not say"), (VLLMAdapter(api="completions"), "vllm.api")):
        assert words in adapter.unsupported_images()
    with (
        served(LLAVA, tmp_path, fork_server, adapter=VLLMAdapter(api="completions")) as subject,
        pytest.raises(ConfigError, match=r"has images: vllm\.api=completions does not say"),
    ):
        subject.generate(subject.request(*pictures(subject.vision, 0)))


TORCHVISION = engines.VLLM_PYTHON.parents[1] / "lib"
REAL = {
    **QWEN2_5_VL,
    # vLLM's attention on CPUs wants heads of 32 and more.
    "text_config": {
        **QWEN2_5_VL["text_config"], "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
    },
    "vision_config": {**QWEN2_5_VL["vision_config"], "hidden_size": 64, "num_heads": 2, "out_hidden_size": 64},
}  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """vLLM itself, which takes minutes to start; without the probe, so that what differs can be seen."""
    if not any(TORCHVISION.glob("*/site-packages/torchvision/__init__.py")):
        pytest.skip("no vLLM that reads images here: bash scripts/setup_vllm.sh --images")
    folder = tmp_path_factory.mktemp("vllm")
    tokenizer = character_tokenizer("0123456789abcdefghijklmno")
    names = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    assert tokenizer.convert_tokens_to_ids(names) == [27, 28, 29, 30]
    (folder / "processor").mkdir()
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
                "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
                "size": {"shortest_edge": 256, "longest_edge": 81920}}  # fmt: skip
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(settings))
    command = prepare(
        VLLMConfig(python=str(engines.VLLM_PYTHON)),
        ServerEngineConfig(dtype="float32", max_concurrent=16),
        folder=folder / "launch",
        model_config={**REAL, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "dtype": "float32"},
        tokenizer=tokenizer,
        processor=folder / "processor",
        context=CONTEXT,
        on_cpu=True,
    )
    pool = LocalSupervisor(
        ["vllm-0"],
        lambda index, port: ServerCommand(arguments=command(index, port)[0], environment=command(index, port)[1]),
        health=is_healthy,
        config=SupervisorConfig(poll_seconds=0.5, startup_seconds=1200.0, max_restarts=0),
        log_folder=folder / "logs",
    )
    subject = Subject(REAL, folder, pool=pool, probed=False)
    with contextlib.closing(subject.engine):
        subject.engine.wait_ready(timeout=1200)
        yield subject


SIZES = [(16, 16), (16, 24), (24, 16), (32, 32), (56, 56)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
class TestVLLM:
    """Against the real program."""

    def test_images_of_all_sizes_are_placed_as_meant(self, real):
        requests = [real.request(noisy_image(*real.vision.final_size(*size)), seed=seed)
                    for size in SIZES for seed in range(3)]  # fmt: skip
        # Every answer has passed the comparison.
        assert len(real.generate(*requests)) >= len(SIZES)

    def test_text_alone_is_exact(self, real):
        found = real.generate(*(real.request(seed=seed) for seed in range(6)))
        assert found
        assert max(real.deviation(*pair) for pair in found) < 1e-5

    def test_pixels_are_exact(self, real):
        requests = [real.request(noisy_image(*real.vision.final_size(*size)), seed=seed)
                    for size in SIZES for seed in range(3)]  # fmt: skip
        # Features of this tower are numbers up to 60, in float32: two ways to compute them differ by 2e-4.
        assert max(real.deviation(*pair) for pair in real.generate(*requests)) < 2e-4

    def test_samples_follow_two_updates_of_language_half_and_tower(self, real):
        """Last in its class, since the weights are others from here on."""
        shown = [[size] for size in SIZES] + [[SIZES[0], SIZES[3]], [SIZES[4], SIZES[1]], []]
        requests = [
            real.request(*(noisy_image(*real.vision.final_size(*size), seed=seed) for size in sizes), seed=seed)
            for seed in range(4)
            for sizes in shown
        ]
        assert len(requests) == 32
        for update in range(3):
            found = real.generate(*requests)
            assert sum(bool(request.images) for request, _ in found) > len(found) / 2 > 5
            worst = max(real.deviation(*pair) for pair in found)
            assert worst < 2e-4, f"after {update} updates"
            if update < 2:
                real.change_weights(update)
                assert max(real.deviation(*pair) for pair in found) > 1e-2
                real.publish()
        assert real.engine.version == 2


IMAGE = noisy_image(8, 8)
REFS = (ImageRef(image=IMAGE, start=1, length=3), ImageRef(image=IMAGE, start=5, length=2))
TOKENS = [5, 27, 27, 27, 9, 27, 27, 8]
ECHO = {
    "prompt_token_ids": TOKENS,
    "mm_placeholders": {"image": [{"offset": 1, "length": 3}, {"offset": 5, "length": 2}]},
}


def test_one_placeholder_of_each_image_is_sent():
    assert contracted(TOKENS, REFS) == [5, 27, 9, 27, 8]
    assert contracted(TOKENS, ()) == TOKENS
    with pytest.raises(ValueError, match="columns 1 to 3 hold other tokens"):
        contracted([5, 27, 4, 27, 9, 27, 27, 8], REFS)
    assert png_url(IMAGE) is png_url(noisy_image(8, 8))
    body = json.loads(asyncio.run(body_with_images({"token_ids": [5, 27]}, REFS)))
    assert body == {
        "token_ids": [5, 27],
        "content_parts": [{"type": "image_url", "url": png_url(IMAGE).decode()}] * 2,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_token_ids": None}, "does not say what prompt it made of 2 images"),
        ({"mm_placeholders": None}, "does not say"),
        ({"mm_placeholders": {"image": ECHO["mm_placeholders"]["image"][:1]}}, "placed images as"),
        ({"mm_placeholders": {**ECHO["mm_placeholders"], "video": []}}, "placed images as"),
        ({"prompt_token_ids": [*TOKENS, 27]}, "used a prompt of 9 tokens, expected 8; they differ in length"),
        ({"prompt_token_ids": [6, *TOKENS[1:]]}, "they differ from token 0"),
    ],
)
def test_every_difference_of_an_echo_is_found(changes, words):
    check_echo(ECHO, TOKENS, REFS, where="here")
    with pytest.raises(BrokenTokensError, match=words):
        check_echo({**ECHO, **changes}, TOKENS, REFS, where="here")
