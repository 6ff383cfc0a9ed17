"""Images of rollouts in reports: beside their samples, each once, bounded, named by digest, and harmless."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image as Pillow

from areal.api import ImageRef, PromptGroup
from areal.cli import main as cli
from areal.dataset.pixels import image_of
from areal.infra.metrics import pictures
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.logger import MetricLogger
from areal.infra.metrics.report import write_report
from tests.areal.infra.metrics.test_report import Page, trajectory
from tests.support.vision import noisy_image


def with_images(index, *images, start=0):
    """A sample of prompt tokens 1 and 2; images are spans of one token each."""
    refs = tuple(ImageRef(image=image, start=start + number, length=1) for number, image in enumerate(images))
    sample = trajectory(index, [3, 3, 4])
    mask = [0 if any(ref.start == column for ref in refs) else value for column, value in enumerate(sample.loss_mask)]
    return replace(sample, images=refs, loss_mask=mask)


def run(folder, *groups, first_step=1, **options):
    with MetricLogger(folder, MetricsConfig(**options), first_step=first_step) as metrics:
        for step, samples in enumerate(groups, start=first_step):
            metrics.log(step, {"reward/mean": 0.5})
            metrics.log_rollouts(step, [PromptGroup(ordinal=step, admitted_version=0, trajectories=samples)])
    return folder


def page_of(folder):
    return Page(write_report(folder, folder / "report.html").read_text(encoding="utf-8"))


def policy_of(page):
    return next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))


def decoded(uri):
    head, _, content = uri.partition(";base64,")
    return head, Pillow.open(io.BytesIO(base64.b64decode(content)))


def test_samples_show_their_images_and_a_page_holds_each_once(tmp_path):
    one, other = noisy_image(8, 12, seed=1), noisy_image(300, 600, seed=2)
    page = page_of(run(tmp_path, (with_images(0, one, other), with_images(1, one, other)), (with_images(0, one),)))
    assert set(page.data["pictures"]) == {one.digest, other.digest}
    samples = page.data["groups"][0]["samples"]
    assert samples[0]["images"] == [
        {"digest": one.digest, "height": 8, "width": 12, "start": 0, "length": 1},
        {"digest": other.digest, "height": 300, "width": 600, "start": 1, "length": 1},
    ]
    assert samples[1]["images"] == samples[0]["images"]
    head, small = decoded(page.data["pictures"][one.digest])
    assert head == "data:image/png"
    assert np.array_equal(np.asarray(small), one.pixels)
    head, large = decoded(page.data["pictures"][other.digest])
    assert (head, large.size) == ("data:image/jpeg", (192, 96))
    assert "img-src data:" in policy_of(page)
    assert "default-src 'none'" in policy_of(page)


def test_pages_without_images_may_show_none(tmp_path):
    page = page_of(run(tmp_path, (trajectory(0, [3]),)))
    assert page.data["pictures"] == {}
    assert "img-src" not in policy_of(page)
    assert not (tmp_path / "pictures").exists()


def test_a_run_keeps_a_limited_number_of_pictures_over_all_its_starts(tmp_path):
    images = [noisy_image(4, 4, seed=seed) for seed in range(4)]
    run(tmp_path, (with_images(0, *images[:1]),), pictures=2)
    run(tmp_path, (with_images(0, *images[1:2]),), (with_images(0, *images[2:]),), first_step=2, pictures=2)
    assert {file.stem for file in (tmp_path / "pictures").iterdir()} == {image.digest for image in images[:2]}
    page = page_of(tmp_path)
    assert set(page.data["pictures"]) == {image.digest for image in images[:2]}
    assert "2 of their 4 images are shown" in " ".join(page.text)


def test_a_page_has_room_for_the_newest_pictures_only(tmp_path, monkeypatch):
    images = [noisy_image(40, 40, seed=seed) for seed in range(3)]
    run(tmp_path, *((with_images(0, image),) for image in images))
    sizes = [(tmp_path / "pictures" / f"{image.digest}.png").stat().st_size for image in images]
    monkeypatch.setattr(pictures, "MAX_SHOWN_BYTES", sizes[1] + sizes[2])
    assert set(page_of(tmp_path).data["pictures"]) == {images[1].digest, images[2].digest}


def test_names_other_than_digests_and_files_other_than_pictures_are_left_out(tmp_path):
    image = noisy_image(4, 4)
    run(tmp_path, (with_images(0, image),))
    (tmp_path / "secret.png").write_bytes((tmp_path / "pictures" / f"{image.digest}.png").read_bytes())
    (tmp_path / "pictures" / f"{image.digest}.png").write_text("<svg onload=alert(1)>")
    lines = (tmp_path / "rollouts.jsonl").read_text().strip().split("\n")
    record = json.loads(lines[-1])
    record["samples"][0]["images"].append({**record["samples"][0]["images"][0], "digest": "../secret"})
    (tmp_path / "rollouts.jsonl").write_text("\n".join([*lines[:-1], json.dumps(record, separators=(",", ":"))]) + "\n")
    page = page_of(tmp_path)
    assert page.data["pictures"] == {}
    assert [each["digest"] for each in page.data["groups"][0]["samples"][0]["images"]] == [image.digest, "../secret"]


def test_the_text_names_digest_and_size(tmp_path, capsys):
    images = [image_of(np.full((6, 4 + number, 3), number, dtype=np.uint8)) for number in range(5)]
    run(tmp_path, *((with_images(0, image), with_images(1, image)) for image in images))
    assert cli.main(["report", str(tmp_path), "--text"]) == 0
    out = capsys.readouterr().out
    assert f"images       5 in kept rollouts, the newest {images[4].digest[:12]} (6 x 8 pixels, 1 tokens), " in out
    assert images[1].digest[:12] not in out
    assert cli.main(["report", str(tmp_path), "--text", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"]
    assert found["distinct"] == 5
    assert found["newest"][0] == {"digest": images[4].digest, "height": 6, "width": 8, "tokens": 1}


@pytest.mark.exhaustive
def test_a_browser_shows_them(tmp_path):
    from browser import PROGRAM, Browser

    if PROGRAM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    prompt, later = noisy_image(8, 12, seed=1), noisy_image(8, 8, seed=2)
    mixed = with_images(0, prompt)
    answer = ImageRef(image=later, start=3, length=1)
    sample = replace(mixed, images=(*mixed.images, answer), loss_mask=[0, 0, 1, 0, 1])
    write_report(run(tmp_path, (sample,)), tmp_path / "report.html")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "report.html")
        widths = browser.evaluate("[...document.querySelectorAll('#group > .pictures img')].map(i => i.naturalWidth)")
        assert widths == [12]
        assert browser.evaluate("[...document.querySelectorAll('.sample img')].map(i => i.naturalWidth)") == [8]
        assert browser.evaluate("document.querySelector('figcaption + *, .picture figcaption').textContent") != ""
        assert browser.problems == []
