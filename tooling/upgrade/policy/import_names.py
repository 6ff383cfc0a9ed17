"""What distributions are imported as."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tooling.upgrade.sources.folder import installed_release

_KNOWN: dict[str, tuple[str, ...]] = {
    "absl-py": ("absl",),
    "antlr4-python3-runtime": ("antlr4",),
    "apache-airflow": ("airflow",),
    "argon2-cffi": ("argon2",),
    "attrs": ("attr", "attrs"),
    "azure-identity": ("azure.identity",),
    "azure-storage-blob": ("azure.storage.blob",),
    "beautifulsoup4": ("bs4",),
    "biopython": ("Bio",),
    "cattrs": ("cattr", "cattrs"),
    "cython": ("Cython",),
    "discord-py": ("discord",),
    "djangorestframework": ("rest_framework",),
    "dnspython": ("dns",),
    "ffmpeg-python": ("ffmpeg",),
    "flash-linear-attention": ("fla",),
    "fonttools": ("fontTools",),
    "gitpython": ("git",),
    "google-api-python-client": ("apiclient", "googleapiclient"),
    "google-auth": ("google.auth", "google.oauth2"),
    "google-cloud-bigquery": ("google.cloud.bigquery",),
    "google-cloud-storage": ("google.cloud.storage",),
    "google-generativeai": ("google.generativeai",),
    "gputil": ("GPUtil",),
    "grpcio": ("grpc",),
    "hydra-core": ("hydra",),
    "imbalanced-learn": ("imblearn",),
    "kafka-python": ("kafka",),
    "levenshtein": ("Levenshtein",),
    "megatron-bridge": ("megatron.bridge",),
    "megatron-core": ("megatron.core",),
    "mysql-connector-python": ("mysql.connector",),
    "mysqlclient": ("MySQLdb",),
    "nats-py": ("nats",),
    "nvidia-ml-py": ("pynvml",),
    "open-clip-torch": ("open_clip",),
    "openai-agents": ("agents",),
    "openai-whisper": ("whisper",),
    "opencv-contrib-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "opencv-python": ("cv2",),
    "paho-mqtt": ("paho.mqtt",),
    "pdfminer-six": ("pdfminer",),
    "pillow": ("PIL",),
    "progressbar2": ("progressbar",),
    "protobuf": ("google.protobuf",),
    "py-cpuinfo": ("cpuinfo",),
    "pycryptodome": ("Crypto",),
    "pygithub": ("github",),
    "pyjwt": ("jwt",),
    "pymupdf": ("fitz", "pymupdf"),
    "pynacl": ("nacl",),
    "pyopenssl": ("OpenSSL",),
    "pyqt5": ("PyQt5",),
    "pyqt6": ("PyQt6",),
    "pyserial": ("serial",),
    "pyside6": ("PySide6",),
    "python-json-logger": ("pythonjsonlogger",),
    "python-multipart": ("multipart", "python_multipart"),
    "python-telegram-bot": ("telegram",),
    "pywavelets": ("pywt",),
    "pyyaml": ("yaml",),
    "pyzmq": ("zmq",),
    "ruamel-yaml": ("ruamel.yaml",),
    "scikit-optimize": ("skopt",),
    "speechrecognition": ("speech_recognition",),
    "tensorboardx": ("tensorboardX",),
    "umap-learn": ("umap",),
    "websocket-client": ("websocket",),
}
"""Of distributions that are often declared without being installed where an audit runs, and go by another name."""
_AFFIX = re.compile(r"^python-|-(?:binary|cpu|cuda\d+x|gpu)$")
"""What the name of a distribution has and that of its package has not: "python-dateutil", "faiss-gpu"."""


def import_names(distribution: str, root: Path | None = None) -> tuple[str, ...]:
    """Import names of a distribution. root: a repository whose `.venv` is asked first."""
    if distribution in _KNOWN:
        return _KNOWN[distribution]
    own = [*root.glob(".venv/lib/python*/site-packages"), *root.glob(".venv/Lib/site-packages")] if root else []
    for folders in (own, map(Path, sys.path)):
        found = installed_release(distribution, folders)
        if found is not None and found.roots():
            return tuple(sorted(found.roots()))
    plain = _AFFIX.sub("", distribution).replace("scikit-", "sk")
    return (plain.replace("-", "_").replace(".", "_"),)
