"""Reading images as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def is_picture(path: Path) -> bool:
    """Whether a path is that of an image, by its ending; other files, and hidden ones, are passed over."""
    return path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and path.is_file()


def read_picture(
    path: Path,
    size: int,
) -> Tensor:  # shape: (3, size, size), float32
    """The largest square in the middle of an image, scaled to ``size``; red, green and blue from 0 to 1.

    Raises:
        ImportError: without Pillow.
        ValueError: if the file is not an image.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("images are read with Pillow, which is not installed: `pip install pillow`") from error
    try:
        with Image.open(path) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that a file is damaged
        raise ValueError(f"{path} cannot be read as an image ({error})") from None
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1) / 255
