#!/usr/bin/env python3
"""Runs a command where RDMA devices exist, on a machine that has none.

Boots a Linux guest in QEMU with two soft-RoCE devices (rdma_rxe) on the two ends of a veth pair,
runs COMMAND in it and exits as it does. The guest's root is this machine's file system, read-only
under an overlay in memory: every program and library of this machine is there under its own path,
and what the command writes is thrown away, except below --output.

  rdma_lab.py [options] COMMAND [ARGUMENT...]    one word: run by bash; several: run as they are
  rdma_lab.py --setup                            only fetches what is needed
In the guest: rxe0 on veth0 (10.77.0.1), rxe1 on veth1 (10.77.0.2), root, no other network.

Exit code: the command's; 77 a guest cannot be had on this machine, the reason on stderr; 124 the
time was over; 125 the guest ended without a result. Environment: MEP_LAB_CACHE (where the kernel is
kept, default ~/.cache/mep/rdma-lab), MEP_LAB_ACCEL (kvm or tcg; default: kvm if a guest boots with
it). MEP_* is handed on, other variables by --pass.
"""

import argparse
import contextlib
import fcntl
import gzip
import hashlib
import os
import pathlib
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

UNAVAILABLE, TIMED_OUT, BROKEN = 77, 124, 125
FOLDER = pathlib.Path(__file__).resolve().parent
PROGRAMS = {  # program: the Debian package that has it
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_lat": "perftest",
}
LIBRARY_PACKAGES = {"libibverbs/librxe-rdmav34.so": "ibverbs-providers"}
# Modules that must be there before the root file system is, and those of the RDMA devices. rxe takes
# "crc32" from the kernel's crypto tables, where it is found only if its module is loaded.
BOOT_MODULES = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"]
RDMA_MODULES = ["crc32_generic", "crc32c_generic", "veth", "sch_netem", "ib_uverbs", "rdma_ucm",
                "rdma_rxe"]


class Unavailable(Exception):
    """This machine cannot run the guest; the text says why."""


def say(text):
    print(f"rdma lab: {text}", file=sys.stderr, flush=True)


# --- What is needed on this machine ----------------------------------------------------------------

def missing_packages():
    packages = {package for program, package in PROGRAMS.items() if not find_program(program)}
    for library, package in LIBRARY_PACKAGES.items():
        if not list(pathlib.Path("/usr/lib").glob(f"*/{library}*")):
            packages.add(package)
    return sorted(packages)


def find_program(name):
    # Users without privileges often lack /sbin in PATH.
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/bin")


def as_root(command):
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise Unavailable(f"root is needed for: {shlex.join(command)}")
        command = ["sudo", "-n", *command]
    return command


def quietly(command, what, **options):
    """Runs it; its output is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, check=False, **options)
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-4:])
        raise Unavailable(f"{what} failed: {shlex.join(map(str, command))}: {last}")
    return done.stdout


def install_packages():
    packages = missing_packages()
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise Unavailable(f"no apt here to install {' '.join(packages)}")
    if os.environ.get("MEP_DEV_NO_INSTALL") == "1":
        raise Unavailable(f"MEP_DEV_NO_INSTALL=1, and these are missing: {' '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    install = as_root(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q",
                       "--no-install-recommends", *packages])
    with contextlib.suppress(Unavailable):  # older lists may do
        quietly(as_root(["apt-get", "update", "-q"]), "refreshing the package lists",
                env=environment)
    quietly(install, "installing packages", env=environment)
    still = missing_packages()
    if still:
        raise Unavailable(f"installed, but still not found: {' '.join(still)}")


# --- Kernel and initramfs ---------------------------------------------------------------------------

def kernel_package():
    """The newest plain Debian kernel image: the -cloud- variants have neither 9p nor rxe."""
    listing = quietly(["apt-cache", "depends", "linux-image-amd64"], "asking apt for a kernel")
    names = re.findall(r"Depends: (linux-image-\d\S*)", listing)
    if not names:
        raise Unavailable("apt knows no linux-image-amd64 (run apt-get update; Debian is expected)")
    return names[0]


def fetch_kernel(cache):
    """Leaves vmlinuz and, in load order, the modules of both stages in the cache."""
    wanted = " ".join(BOOT_MODULES + ["|"] + RDMA_MODULES)
    if (cache / "complete").is_file() and (cache / "complete").read_text() == wanted:
        return
    if not shutil.which("apt-get"):
        raise Unavailable("no apt here to download a Debian kernel with")
    package = kernel_package()
    say(f"downloading {package} to {cache} (about 70 MB, once)")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        scratch = pathlib.Path(scratch)
        # apt's own download user may not enter the folder; it says so and downloads as root.
        quietly(["apt-get", "download", "-q", package], "downloading the kernel", cwd=scratch)
        archive = next(scratch.glob("*.deb"))
        tree = scratch / "tree"
        quietly(["dpkg-deb", "-x", archive, tree], "unpacking the kernel")
        version = next((tree / "lib/modules").iterdir()).name
        quietly([find_program("depmod") or "depmod", "-b", tree, version], "indexing its modules")
        shutil.rmtree(cache / "modules", ignore_errors=True)
        seen = set()
        for stage, modules in (("boot", BOOT_MODULES), ("rdma", RDMA_MODULES)):
            folder = cache / "modules" / stage
            folder.mkdir(parents=True)
            for source in load_order(tree, version, modules):
                if source not in seen:
                    seen.add(source)
                    number = len(seen)
                    shutil.copy(source, folder / f"{number:03}-{pathlib.Path(source).name}")
        shutil.copy(tree / f"boot/vmlinuz-{version}", cache / "vmlinuz")
    (cache / "complete").write_text(wanted)


def load_order(tree, version, modules):
    for module in modules:
        steps = quietly([find_program("modprobe"), "-d", tree, "-S", version, "--show-depends",
                         "--ignore-install", module], f"looking for the module {module}")
        for line in steps.splitlines():
            if line.startswith("insmod "):
                yield line.split()[1]


def cpio_archive(entries):
    """An archive in the kernel's "newc" format; entries: (path, mode, bytes)."""
    archive = bytearray()

    def add(name, mode, data):
        encoded = name.encode() + b"\0"
        fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        archive.extend(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
        archive.extend(bytes(-len(archive) % 4))
        archive.extend(data)
        archive.extend(bytes(-len(archive) % 4))

    for path, mode, data in entries:
        add(path, mode, data)
    add("TRAILER!!!", 0, b"")
    return bytes(archive)


def build_initramfs(cache):
    """The part that all runs share; rebuilt when anything in it changes."""
    directory, program, plain = 0o040755, 0o100755, 0o100644
    entries = [(path, directory, b"") for path in
               ("bin", "dev", "proc", "sys", "job", "host", "memory", "root", "modules",
                "modules/boot", "modules/rdma")]
    entries.append(("bin/busybox", program, pathlib.Path(find_program("busybox")).read_bytes()))
    entries.append(("init", program, (FOLDER / "guest_init.sh").read_bytes()))
    entries.append(("session.sh", program, (FOLDER / "guest_session.sh").read_bytes()))
    for module in sorted((cache / "modules").glob("*/*.ko*")):
        entries.append((str(module.relative_to(cache)), plain, module.read_bytes()))
    stamp = hashlib.sha256(repr([(e[0], hashlib.sha256(e[2]).digest()) for e in entries]).encode())
    image, stamp_file = cache / "initramfs.gz", cache / "initramfs.stamp"
    if not (image.exists() and stamp_file.exists() and stamp_file.read_text() == stamp.hexdigest()):
        fresh = cache / "initramfs.new"
        fresh.write_bytes(gzip.compress(cpio_archive(entries), 1))
        fresh.rename(image)
        stamp_file.write_text(stamp.hexdigest())
    return image


def prepare(cache):
    if os.uname().machine != "x86_64":
        raise Unavailable(f"the guest is x86_64, this machine {os.uname().machine}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "w", encoding="ascii")
    except OSError as error:
        raise Unavailable(f"the cache {cache} cannot be written: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test programs may start at once
        install_packages()
        fetch_kernel(cache)
        return build_initramfs(cache)


# --- A guest ----------------------------------------------------------------------------------------

def job_files(options, command):
    """The files that this run alone needs, as a second archive behind the shared initramfs."""
    names = sorted({"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", *options.pass_on,
                    *(name for name in os.environ if name.startswith("MEP_"))})
    lines = [f"export {name}={shlex.quote(os.environ[name])}" for name in names
             if name in os.environ]
    lines += [f"cd {shlex.quote(os.getcwd())} || exit 125", f"ulimit -l {options.memlock}"]
    if options.before:
        lines.append(options.before)
    lines.append(f"exec bash -c {shlex.quote(command)}")
    settings = f"MTU={options.mtu}\nOUTPUT={shlex.quote(options.output or '')}\n"
    return cpio_archive([("job", 0o040755, b""),
                         ("job/settings", 0o100644, settings.encode()),
                         ("job/command", 0o100644, "\n".join(lines).encode() + b"\n")])


def accelerator(options, cache, image):
    """A /dev/kvm that opens need not run a guest: it may itself be emulated. So one is tried, once."""
    chosen = os.environ.get("MEP_LAB_ACCEL", "")
    if chosen in ("kvm", "tcg"):
        return chosen
    known = cache / "accelerator"
    if not known.is_file():
        usable = os.access("/dev/kvm", os.W_OK) and not pathlib.Path("/sys/module/kvm_pvm").exists()
        if usable:
            say("trying whether KVM boots a guest here")
            trial = argparse.Namespace(**{**vars(options), "timeout": 40, "output": None,
                                          "before": "", "quiet": True})
            usable = Guest(trial, "kvm", cache, image, "true").run() == 0
        known.write_text("kvm" if usable else "tcg")
    return known.read_text()


class Guest:
    """One QEMU process; its virtio ports carry stdout, stderr and the result."""

    PORTS = ("stdout", "stderr", "result")

    def __init__(self, options, accel, cache, image, command):
        self.options = options
        self.accel = accel
        self.cache = cache
        self.image = image
        self.command = command
        self.result = b""
        self.quiet = getattr(options, "quiet", False)

    def command_line(self, scratch, ports):
        line = ["qemu-system-x86_64", "-machine", "q35", "-nodefaults", "-no-user-config",
                "-no-reboot", "-display", "none", "-monitor", "none",
                "-smp", str(self.options.cpus), "-m", str(self.options.memory),
                "-kernel", str(self.cache / "vmlinuz"), "-initrd", str(scratch / "initramfs"),
                "-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr "
                           "random.trust_cpu=on no_timer_check",
                "-serial", f"file:{scratch / 'console'}",
                "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,"
                           "multidevs=remap",
                "-device", "virtio-serial-pci"]
        if self.accel == "kvm":
            line += ["-accel", "kvm", "-cpu", "host"]
        else:
            # An emulated CPU interrupts "rep movsb", with which rxe would copy, between any two bytes:
            # a signal's eight would not arrive as one. Without erms the kernel copies whole words.
            line += ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-erms,-fsrm"]
        if self.options.output:
            line += ["-virtfs", f"local,path={self.options.output},mount_tag=output,"
                                "security_model=none,multidevs=remap"]
        for name, end in ports.items():
            line += ["-chardev", f"socket,id={name},fd={end.fileno()}",
                     "-device", f"virtserialport,chardev={name},name={name}"]
        return line

    def run(self):
        with tempfile.TemporaryDirectory(prefix="mep-rdma-lab.") as scratch:
            scratch = pathlib.Path(scratch)
            job = job_files(self.options, self.command)
            shared = self.image.read_bytes()
            # The kernel looks for a further archive at multiples of four bytes only.
            (scratch / "initramfs").write_bytes(shared + bytes(-len(shared) % 4) + job)
            pairs = {name: socket.socketpair() for name in self.PORTS}
            theirs = {name: pair[1] for name, pair in pairs.items()}
            log = open(scratch / "qemu", "wb")
            qemu = subprocess.Popen(self.command_line(scratch, theirs), stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log, start_new_session=True,
                                    pass_fds=[end.fileno() for end in theirs.values()])
            log.close()
            try:
                for end in theirs.values():
                    end.close()
                in_time = self.copy_output({name: pair[0] for name, pair in pairs.items()})
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    qemu.wait(5 if qemu.poll() is None and self.result else 0)
                qemu.kill()
                qemu.wait()
            return self.verdict(in_time, scratch)

    def copy_output(self, ports):
        """Until the guest is gone. False: the time was over."""
        deadline = time.monotonic() + self.options.timeout
        targets = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        with selectors.DefaultSelector() as selector:
            for name, end in ports.items():
                selector.register(end, selectors.EVENT_READ, name)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in selector.select(left):
                    data = key.fileobj.recv(65536)
                    if not data:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                    elif key.data == "result":
                        self.result += data
                    elif not self.quiet:
                        targets[key.data].write(data)
                        targets[key.data].flush()
        return True

    def verdict(self, in_time, scratch):
        lines = self.result.decode(errors="replace").splitlines()
        exits = [line.split()[1] for line in lines if re.fullmatch(r"exit \d+", line)]
        if self.options.verbose and not self.quiet:
            for line in lines:
                say(f"guest: {line}")
        if exits:
            return int(exits[-1])
        if not in_time:
            say(f"the guest was stopped after {self.options.timeout} s")
            return TIMED_OUT
        if not self.quiet:
            say("the guest ended without a result" + "".join(f"; {line}" for line in lines))
            for name in ("qemu", "console"):
                with contextlib.suppress(OSError):
                    text = (scratch / name).read_text(errors="replace").strip()
                    if text:
                        say(f"{name}: " + "\n".join(text.splitlines()[-15:]))
        return BROKEN


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="only fetch what is needed")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the whole guest")
    parser.add_argument("--cpus", type=int, default=os.cpu_count())
    parser.add_argument("--memory", type=int, default=2048, help="MiB")
    parser.add_argument("--mtu", type=int, default=4200,
                        help="of the veth pair; 4200 gives RoCE's largest, 4096")
    parser.add_argument("--memlock", default="unlimited", help="KiB (ulimit -l)")
    parser.add_argument("--output", metavar="DIR",
                        help="a folder that the guest may write, under the same path")
    parser.add_argument("--before", default="", metavar="SHELL",
                        help="run by the guest's shell before the command")
    parser.add_argument("--pass", dest="pass_on", action="append", default=[], metavar="NAME",
                        help="an environment variable to hand on")
    parser.add_argument("--verbose", action="store_true", help="say when the guest did what")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    if not options.command and not options.setup:
        parser.error("which command?")
    if options.output:
        options.output = str(pathlib.Path(options.output).resolve(strict=True))
    return options


def main():
    options = parse(sys.argv[1:])
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = pathlib.Path(os.environ.get("MEP_LAB_CACHE") or f"{base}/mep/rdma-lab").expanduser()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image = prepare(cache)
        if options.setup:
            say(f"ready in {cache}")
            return 0
        command = options.command[0] if len(options.command) == 1 else shlex.join(options.command)
        return Guest(options, accelerator(options, cache, image), cache, image, command).run()
    except Unavailable as reason:
        say(f"no RDMA guest on this machine: {reason}")
        return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
