"""Codec encoder and speaker encoder in plain torch, each loaded on its first use: only cloning needs them."""

import hashlib
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qwen3tts.checkpoint import Checkpoint, TensorReader, load_module
from qwen3tts.errors import NumericsError, Qwen3TTSError, VoiceError
from qwen3tts.model.codec_encoder import CodecEncoder
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.speaker_encoder import SpeakerEncoder

SPEAKER_PREFIX = "speaker_encoder."
FINGERPRINT_DIGITS = 16


class TorchEncoders:
    """What makes a voice of a recording. Thread-safe; recordings are encoded one by one, so that a voice does not
    depend on what is encoded beside it.

    The codec encoder is fp32. The speaker encoder has the dtype of the model, and its x-vector is rounded to it, as in
    the official package; the array that holds it is float32."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        """dtype: of the model. Reads nothing yet."""
        self.checkpoint, self.device, self.dtype = checkpoint, device, dtype
        self._lock = threading.Lock()
        self._codec: CodecEncoder | None = None
        self._speaker: SpeakerEncoder | None = None
        self._fingerprint: str | None = None
        self._closed = False

    @property
    def can_embed(self) -> bool:
        """Whether the checkpoint has a speaker encoder: Base checkpoints do."""
        return self.checkpoint.config.speaker_encoder is not None

    def encode(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """float32 [n] at 24 kHz -> codes [ceil(n / 1920), 16]. Raises AudioError if there are none,
        NumericsError if they are not finite or overflow, CheckpointError if the weights cannot be loaded."""
        with self._lock, exact_arithmetic(self.device):
            codes = self._codec_encoder()(self._to_device(samples)).to(torch.int16)
            result: npt.NDArray[np.int16] = codes.cpu().numpy()
            return result

    def embed(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [n] at 24 kHz -> x-vector [enc_dim].

        Raises AudioError if there are fewer than 1280 samples, VoiceError if the model has no speaker encoder,
        NumericsError if the x-vector is not finite, CheckpointError if the weights cannot be loaded."""
        with self._lock, exact_arithmetic(self.device):
            embedding = self._speaker_encoder()(self._to_device(samples)).cpu()
        if not embedding.isfinite().all():
            raise NumericsError(f"The x-vector is not finite: values overflow in {self.dtype}. Try dtype='float32'.")
        result: npt.NDArray[np.float32] = embedding.numpy()
        return result

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the speaker encoder's stored weights: the same for every checkpoint whose x-vectors
        mean the same. Raises VoiceError if the model has none, CheckpointError if the weights cannot be read."""
        with self._lock:
            self._check_usable(speaker=True)
            if self._fingerprint is None:
                digest = hashlib.sha256()
                with self.checkpoint.model_weights() as weights:
                    for key in sorted(key for key in weights if key.startswith(SPEAKER_PREFIX)):
                        tensor = weights.read(key).float()  # so that the dtype of the file does not count
                        digest.update(f"{key} {list(tensor.shape)}\n".encode())
                        digest.update(tensor.numpy().tobytes())
                        weights.forget(key)
                self._fingerprint = digest.hexdigest()[:FINGERPRINT_DIGITS]
            return self._fingerprint

    def close(self) -> None:
        """Frees the weights; the encoders cannot be used any more."""
        with self._lock:
            self._codec = self._speaker = None
            self._closed = True

    def _check_usable(self, *, speaker: bool) -> None:
        if self._closed:
            raise Qwen3TTSError("This model was closed; load it again.")
        if speaker and not self.can_embed:
            raise VoiceError(
                f"A {self.checkpoint.config.model_type} model has no speaker encoder; clone voices with a Base model."
            )

    def _codec_encoder(self) -> CodecEncoder:
        self._check_usable(speaker=False)
        if self._codec is None:
            config = self.checkpoint.config.codec
            with torch.device("meta"):
                model = CodecEncoder(config.encoder, config.decoder.num_quantizers)
            with self.checkpoint.codec_weights() as weights:
                self._load(model, weights, "encoder.", torch.float32)
            model.prepare()
            self._codec = model
        return self._codec

    def _speaker_encoder(self) -> SpeakerEncoder:
        self._check_usable(speaker=True)
        if self._speaker is None:
            config = self.checkpoint.config.speaker_encoder
            assert config is not None
            with torch.device("meta"):
                model = SpeakerEncoder(config)
            with self.checkpoint.model_weights() as weights:
                self._load(model, weights, SPEAKER_PREFIX, self.dtype)
            self._speaker = model
        return self._speaker

    def _load(self, model: nn.Module, weights: TensorReader, prefix: str, dtype: torch.dtype) -> None:
        load_module(model, weights, prefix=prefix, device=self.device, dtype_of=lambda key, stored: dtype)
        model.eval()

    def _to_device(self, samples: npt.NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.array(samples, np.float32)).to(self.device)
