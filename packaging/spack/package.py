"""The recipe of MEP for Spack."""

from spack.package import *


class Mep(CMakePackage, CudaPackage):
    """MoE expert parallelism and collectives that survive rank failures."""

    # The owner puts the project's own address and the releases here.
    homepage = "https://mep.invalid/"
    git = "https://mep.invalid/mep.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="libmep_mpi, and MPI beside MEP in mep_perf")
    variant("verbs", default=False, description="RDMA through rdma-core")
    variant("openssl", default=True, description="Faster protection of data between hosts")
    variant("fortran", default=True, description="The Fortran module mep")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("hwloc@2:")
    depends_on("libsodium")
    depends_on("mpi", when="+mpi")
    depends_on("rdma-core", when="+verbs")
    depends_on("openssl@1.1.1:", when="+openssl")

    conflicts("%gcc@:11", msg="MEP needs C++20 of GCC 12")
    conflicts("platform=darwin", msg="MEP is for Linux")
    conflicts("cuda_arch=none", when="+cuda", msg="choose cuda_arch, 90 for an H100")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("MEP_BUILD_TESTS", False),
            self.define_from_variant("MEP_MPI", "mpi"),
            self.define_from_variant("MEP_VERBS", "verbs"),
            self.define_from_variant("MEP_OPENSSL", "openssl"),
            self.define_from_variant("MEP_CUDA", "cuda"),
        ]
        if self.spec.satisfies("~fortran"):
            args.append(self.define("CMAKE_Fortran_COMPILER", ""))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("MEP_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

    @property
    def build_targets(self):
        return ["mep_programs"]
