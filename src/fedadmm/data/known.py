"""The data sets that fedadmm knows: canonical files, sizes, checksums and addresses."""

from __future__ import annotations

from pathlib import Path

from fedadmm.data.sources import Archive, File, Source, folders

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"


def _at(base: str, name: str, size: int, sha256: str, unpacked: str | None = None) -> File:
    return File(name, size, sha256, unpacked, base + name)


MNIST = Source(
    "mnist",
    "60,000 + 10,000 handwritten digits, 28×28",
    "CC BY-SA 3.0",
    (
        _at(
            _MNIST,
            "train-images-idx3-ubyte.gz",
            9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _at(
            _MNIST,
            "train-labels-idx1-ubyte.gz",
            28881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _at(
            _MNIST,
            "t10k-images-idx3-ubyte.gz",
            1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _at(
            _MNIST,
            "t10k-labels-idx1-ubyte.gz",
            4542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

FASHION_MNIST = Source(
    "fashion-mnist",
    "60,000 + 10,000 pictures of clothes, 28×28",
    "MIT",
    (
        _at(
            _FASHION,
            "train-images-idx3-ubyte.gz",
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        _at(
            _FASHION,
            "train-labels-idx1-ubyte.gz",
            29515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        _at(
            _FASHION,
            "t10k-images-idx3-ubyte.gz",
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        _at(
            _FASHION,
            "t10k-labels-idx1-ubyte.gz",
            5148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
)

MNIST_WRITERS = Source(
    "mnist-writers",
    "who wrote each MNIST digit (QMNIST labels): 539 training writers",
    "BSD 3-Clause",
    (
        _at(
            _QMNIST,
            "qmnist-train-labels-idx2-int.gz",
            463024,
            "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
        ),
        _at(
            _QMNIST,
            "qmnist-test-labels-idx2-int.gz",
            526800,
            "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
            "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
        ),
    ),
)

CIFAR10 = Source(
    "cifar10",
    "50,000 + 10,000 colour pictures of ten things, 32×32",
    "none stated; free for research",
    tuple(
        File(name, 30_730_000, checksum)
        for name, checksum in (
            (
                "data_batch_1.bin",
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            ),
            (
                "data_batch_2.bin",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            ),
            (
                "data_batch_3.bin",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            ),
            (
                "data_batch_4.bin",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            ),
            (
                "data_batch_5.bin",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            (
                "test_batch.bin",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        )
    ),
    Archive(
        "cifar-10-binary.tar.gz",
        170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    subfolders=(".", "cifar-10-batches-bin"),
)

CIFAR10_SMALL = Source(
    "cifar10-small",
    "500 + 100 pictures a class of CIFAR-10, 32×32",
    "as CIFAR-10",
    (
        File(
            "cifar10_small.npz",
            17001075,
            "03a01306080fced65ad4fa9c8add1195210f008d98c4bdc3a53cc4421a4f6d8e",
        ),
    ),
)

FEMNIST = Source(
    "femnist",
    "handwritten characters by writer, 62 classes, 28×28: the npz subset, or LEAF's own folders",
    "BSD 2-Clause (LEAF); NIST SD 19 is in the public domain",
    (
        File(
            "femnist_leaf_subset.npz",
            6081207,
            "badeaf5ac049ee77b322fccd1563953a9a35342efb4fbd5b8b3a37b06ba0b6ee",
        ),
    ),
)

HEART = Source(
    "heart-disease",
    "UCI heart disease: four hospitals, 920 patients, 13 measurements",
    "CC BY 4.0",
    (
        _at(
            _UCI,
            "processed.cleveland.data",
            18461,
            "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
        ),
        _at(
            _UCI,
            "processed.hungarian.data",
            10263,
            "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
        ),
        _at(
            _UCI,
            "processed.switzerland.data",
            4109,
            "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
        ),
        _at(
            _UCI,
            "processed.va.data",
            6737,
            "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
        ),
    ),
)

SHAKESPEARE = Source(
    "shakespeare",
    "tiny Shakespeare: 299 speakers, 1.1 million characters",
    "public domain",
    (
        File(
            "tinyshakespeare.txt",
            1115394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            address="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
            "tinyshakespeare/input.txt",
        ),
    ),
)

SOURCES = {
    source.name: source
    for source in (
        MNIST,
        FASHION_MNIST,
        MNIST_WRITERS,
        CIFAR10,
        CIFAR10_SMALL,
        FEMNIST,
        HEART,
        SHAKESPEARE,
    )
}


def find_leaf_folder() -> Path | None:
    """The folder that holds LEAF's `train` folder, if there is one in the data set's place."""
    for folder in folders(FEMNIST):
        for candidate in (folder, folder / "data"):
            if (candidate / "train").is_dir():
                return candidate
    return None
