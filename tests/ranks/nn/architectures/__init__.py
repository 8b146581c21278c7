"""Well-known architectures, written from their papers at a width that two ranks train in seconds.

Depth, order of layers and connections are the papers'; channels, repeats and images are small.
`ARCHITECTURES` maps a name to the class and the shape of the input; a class takes no arguments.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from architectures.attention import MlpMixer, SwinTransformer, VisionTransformer
from architectures.classifiers import (
    AlexNet,
    DenseNet,
    GoogLeNet,
    LeNet5,
    NetworkInNetwork,
    PreActResNet,
    ResNet,
    ResNeXt,
    Vgg,
    Xception,
)
from architectures.efficient import (
    Cbam,
    ConvNeXt,
    EfficientNet,
    MobileNetV2,
    MobileNetV3,
    SeResNet,
    ShuffleNetV2,
    SqueezeNet,
)
from architectures.generators import CoordConv, CycleGan, Dcgan, Edsr, Espcn
from architectures.segmentation import (
    AttentionUNet,
    DeepLabV3,
    Fcn,
    FeaturePyramid,
    HrNet,
    PspNet,
    SegNet,
    UNet,
    UNetPlusPlus,
)
from architectures.volumes import C3d, R2Plus1d, UNet3d, VNet

__all__ = ["ARCHITECTURES", "Architecture"]


class Architecture(NamedTuple):
    """A model to split.

    Attributes:
        make: makes it.
        shape: of its input.
    """

    make: type[nn.Module]
    shape: tuple[int, ...]


ARCHITECTURES: dict[str, Architecture] = {
    "LeNet-5": Architecture(LeNet5, (2, 1, 32, 32)),
    "AlexNet": Architecture(AlexNet, (2, 3, 67, 67)),
    "VGG": Architecture(Vgg, (2, 3, 32, 32)),
    "Network in Network": Architecture(NetworkInNetwork, (2, 3, 32, 32)),
    "GoogLeNet": Architecture(GoogLeNet, (2, 3, 48, 48)),
    "ResNet": Architecture(ResNet, (2, 3, 48, 48)),
    "Pre-activation ResNet": Architecture(PreActResNet, (2, 3, 32, 32)),
    "ResNeXt": Architecture(ResNeXt, (2, 3, 32, 32)),
    "DenseNet": Architecture(DenseNet, (2, 3, 32, 32)),
    "Xception": Architecture(Xception, (2, 3, 48, 48)),
    "SqueezeNet": Architecture(SqueezeNet, (2, 3, 48, 48)),
    "MobileNetV2": Architecture(MobileNetV2, (2, 3, 48, 48)),
    "MobileNetV3": Architecture(MobileNetV3, (2, 3, 48, 48)),
    "ShuffleNetV2": Architecture(ShuffleNetV2, (2, 3, 48, 48)),
    "EfficientNet": Architecture(EfficientNet, (2, 3, 48, 48)),
    "SE-ResNet": Architecture(SeResNet, (2, 3, 32, 32)),
    "CBAM": Architecture(Cbam, (2, 3, 32, 32)),
    "ConvNeXt": Architecture(ConvNeXt, (2, 3, 48, 48)),
    "FCN-8s": Architecture(Fcn, (2, 3, 64, 64)),
    "SegNet": Architecture(SegNet, (2, 3, 32, 32)),
    "U-Net": Architecture(UNet, (1, 1, 60, 60)),
    "U-Net++": Architecture(UNetPlusPlus, (1, 1, 32, 32)),
    "Attention U-Net": Architecture(AttentionUNet, (1, 1, 32, 32)),
    "DeepLabV3": Architecture(DeepLabV3, (2, 3, 48, 48)),
    "PSPNet": Architecture(PspNet, (2, 3, 48, 48)),
    "HRNet": Architecture(HrNet, (2, 3, 48, 48)),
    "Feature pyramid": Architecture(FeaturePyramid, (2, 3, 64, 64)),
    "ESPCN": Architecture(Espcn, (2, 1, 13, 14)),
    "EDSR": Architecture(Edsr, (2, 3, 12, 14)),
    "CycleGAN generator": Architecture(CycleGan, (1, 3, 32, 32)),
    "DCGAN discriminator": Architecture(Dcgan, (2, 3, 32, 32)),
    "CoordConv": Architecture(CoordConv, (2, 2, 16, 18)),
    "ViT": Architecture(VisionTransformer, (2, 3, 32, 32)),
    "Swin": Architecture(SwinTransformer, (1, 3, 32, 32)),
    "MLP-Mixer": Architecture(MlpMixer, (2, 3, 32, 32)),
    "C3D": Architecture(C3d, (1, 3, 8, 32, 32)),
    "3D U-Net": Architecture(UNet3d, (1, 1, 16, 18, 20)),
    "V-Net": Architecture(VNet, (1, 1, 16, 16, 16)),
    "R(2+1)D": Architecture(R2Plus1d, (1, 3, 8, 32, 32)),
}
