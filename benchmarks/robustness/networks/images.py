"""Networks of images and volumes."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from benchmarks.robustness.networks.network import (
    CLASSES,
    Network,
    classes,
    classifier,
    crossentropy,
    numbers,
)

SIZE = 8


def convnet() -> Network:
    inputs = keras.Input([SIZE, SIZE, 1])
    x = layers.MaxPooling2D()(layers.Conv2D(4, 3, activation="relu")(inputs))
    return classifier(inputs, layers.Flatten()(x), numbers(SIZE, SIZE, 1))


def u_net() -> Network:
    """A class for each pixel, by a path down, a path up, and links across."""
    inputs = keras.Input([SIZE, SIZE, 1])
    fine = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    coarse = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(fine)
    up = layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="relu")(coarse)
    joined = layers.Concatenate()([layers.UpSampling2D()(coarse), up, fine])
    model = keras.Model(inputs, layers.Conv2D(CLASSES, 1)(joined))
    y = classes(SIZE, SIZE)
    return Network(model, numbers(SIZE, SIZE, 1), y, crossentropy(), entries=SIZE * SIZE)


def _residual(x: Any, normalization: Any) -> Any:
    h = layers.ReLU()(normalization()(layers.Conv2D(4, 3, padding="same")(x)))
    h = normalization()(layers.Conv2D(4, 3, padding="same")(h))
    return layers.ReLU()(layers.Add()([x, h]))


def resnet(normalization: Any = layers.Identity) -> Network:
    inputs = keras.Input([SIZE, SIZE, 1])
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    pooled = layers.GlobalAveragePooling2D()(_residual(x, normalization))
    return classifier(inputs, pooled, numbers(SIZE, SIZE, 1))


def separable() -> Network:
    inputs = keras.Input([SIZE, SIZE, 2])
    x = layers.SeparableConv2D(4, 3, activation="relu")(inputs)
    x = layers.DepthwiseConv2D(3, activation="relu")(x)
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), numbers(SIZE, SIZE, 2))


def grouped() -> Network:
    inputs = keras.Input([SIZE, SIZE, 2])
    x = layers.Conv2D(4, 3, groups=2, activation="relu")(inputs)
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), numbers(SIZE, SIZE, 2))


def augmented() -> Network:
    """Random changes of the images in training."""
    inputs = keras.Input([SIZE, SIZE, 1])
    x = layers.RandomTranslation(0.1, 0.1)(layers.RandomFlip("horizontal")(inputs))
    x = layers.Conv2D(3, 3, activation="relu")(layers.Rescaling(0.5)(x))
    return classifier(inputs, layers.Flatten()(x), numbers(SIZE, SIZE, 1), draws=True)


def conv3d() -> Network:
    inputs = keras.Input([5, 5, 5, 1])
    x = layers.MaxPooling3D()(layers.Conv3D(3, 2, activation="relu")(inputs))
    return classifier(inputs, layers.Flatten()(x), numbers(5, 5, 5, 1))


def vision_transformer() -> Network:
    inputs = keras.Input([SIZE, SIZE, 1])
    patches = layers.Reshape([4, 16])(ops.image.extract_patches(inputs, 4))
    x = layers.EinsumDense("npx,xd->npd", (4, 6), bias_axes="pd")(patches)  # a bias for each place
    h = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(2, 3)(h, h)
    x += layers.Dense(6, "gelu")(layers.LayerNormalization()(x))
    return classifier(inputs, layers.GlobalAveragePooling1D()(x), numbers(SIZE, SIZE, 1))


def mlp_mixer() -> Network:
    inputs = keras.Input([SIZE, SIZE, 1])
    x = layers.Conv2D(6, 4, strides=4)(inputs)
    x = layers.Reshape([4, 6])(x)
    h = layers.Permute([2, 1])(layers.LayerNormalization()(x))
    x += layers.Permute([2, 1])(layers.Dense(4)(layers.Dense(5, "gelu")(h)))
    x += layers.Dense(6)(layers.Dense(5, "gelu")(layers.LayerNormalization()(x)))
    return classifier(inputs, layers.GlobalAveragePooling1D()(x), numbers(SIZE, SIZE, 1))


def other_normalizations() -> Network:
    """The other normalisations."""
    inputs = keras.Input([SIZE, SIZE, 4])
    x = layers.GroupNormalization(2)(layers.Conv2D(4, 3)(inputs))
    x = layers.UnitNormalization()(layers.AveragePooling2D(2)(x))
    x = layers.RMSNormalization()(layers.Flatten()(x))
    return classifier(inputs, x, numbers(8, 8, 4))


def autoencoder() -> Network:
    inputs = keras.Input([SIZE, SIZE, 1])
    code = layers.Conv2D(2, 3, strides=2, padding="same", activation="relu")(inputs)
    outputs = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(code)
    y = (numbers(SIZE, SIZE, 1) > 0).astype("float32")
    loss = keras.losses.BinaryCrossentropy()
    return Network(keras.Model(inputs, outputs), y, y, loss, entries=SIZE * SIZE)


NETWORKS = {
    "convolutions": convnet,
    "U-Net": u_net,
    "ResNet": resnet,
    "ResNet, BatchNormalization": lambda: resnet(layers.BatchNormalization),
    "ResNet, GroupNormalization": lambda: resnet(lambda: layers.GroupNormalization(2)),
    "separable and depthwise convolutions": separable,
    "convolutions in groups": grouped,
    "augmentation within": augmented,
    "Conv3D": conv3d,
    "vision transformer": vision_transformer,
    "MLP-Mixer": mlp_mixer,
    "other normalisations": other_normalizations,
    "convolutional autoencoder": autoencoder,
}
