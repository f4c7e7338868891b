"""Augmentations of your own: ssl-vit pretrain recipe=mae plugin=noise.py data.augment=noise"""

import torch
from torchvision.transforms import v2

from ssl_vit.extend import augmentation


@augmentation("noise")
def add_noise(image):  # a uint8 tensor (C, H, W)
    noise = torch.randint(-20, 21, image.shape)
    return (image + noise).clamp(0, 255).to(torch.uint8)


augmentation("turned")(v2.RandomRotation(20))  # an object of torchvision or albumentations
