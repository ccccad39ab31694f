#!/usr/bin/env python3
"""Writes the small hwloc topologies of this folder: make_topologies.py [--check].

Each has the shape of a kind of machine and only what the HCA choice looks at. PortNRate and
PortNLinkLayer are attributes that hwloc itself does not write."""
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class Machine:
    def __init__(self):
        self.lines = []
        self.depth = 1
        self.ids = 0
        self.cuda = 0

    def open(self, what, leaf=False, **attributes):
        self.ids += 1
        words = "".join(f' {name}="{value}"' for name, value in attributes.items())
        self.lines.append("  " * self.depth +
                          f'<object type="{what}" gp_index="{self.ids}"{words}{"/" if leaf else ""}>')
        self.depth += 0 if leaf else 1

    def close(self, count=1):
        for _ in range(count):
            self.depth -= 1
            self.lines.append("  " * self.depth + "</object>")

    def info(self, name, value):
        self.lines.append("  " * self.depth + f'<info name="{name}" value="{value}"/>')

    def place(self, what, cpus, nodes, leaf=False, **attributes):
        """A part of the machine: cpus and nodes are (first, count)."""
        mask = lambda pair: f"0x{((1 << pair[1]) - 1) << pair[0]:08x}"
        sets = dict(cpuset=mask(cpus), complete_cpuset=mask(cpus), nodeset=mask(nodes),
                    complete_nodeset=mask(nodes))
        if what == "Machine":
            sets.update(allowed_cpuset=mask(cpus), allowed_nodeset=mask(nodes))
        self.open(what, leaf, **attributes, **sets)

    def node(self, number, cpus):
        """NUMA node and cores of the place that was opened last."""
        self.place("NUMANode", cpus, (number, 1), True, os_index=number, local_memory=1 << 36)
        for cpu in range(cpus[0], cpus[0] + cpus[1]):
            self.place("Core", (cpu, 1), (number, 1), os_index=cpu)
            self.place("PU", (cpu, 1), (number, 1), True, os_index=cpu)
            self.close()

    def host_bridge(self, first_bus, last_bus):
        self.open("Bridge", bridge_type="0-1", depth=0,
                  bridge_pci=f"0000:[{first_bus:02x}-{last_bus:02x}]")

    def bridge(self, depth, bus, device, below, last=None):
        """A PCI bridge (root port, or a port of a switch) at bus:device to the buses below it."""
        self.open("Bridge", bridge_type="1-1", depth=depth,
                  bridge_pci=f"0000:[{below:02x}-{last or below:02x}]",
                  pci_busid=f"0000:{bus:02x}:{device:02x}.0",
                  pci_type="0604 [1000:c030] [0000:0000] b0", pci_link_speed="0.000000")

    def gpu(self, bus, cuda=True):
        self.open("PCIDev", pci_busid=f"0000:{bus:02x}:00.0",
                  pci_type="0302 [10de:2330] [10de:16c1] a1", pci_link_speed="63.015385")
        self.info("PCIDevice", "GH100")
        if cuda:
            self.open("OSDev", name=f"cuda{self.cuda}", subtype="CUDA", osdev_type=5)
            self.info("Backend", "CUDA")
            self.close()
            self.cuda += 1
        self.close()

    def hca(self, bus, name, ports):
        """ports: [(state, Gb/s, link layer)], the state as in verbs: 1 down, 4 active."""
        self.open("PCIDev", pci_busid=f"0000:{bus:02x}:00.0",
                  pci_type="0207 [15b3:1021] [15b3:0023] 00", pci_link_speed="63.015385")
        self.open("OSDev", name=name, osdev_type=3)
        for number, (state, rate, layer) in enumerate(ports, 1):
            self.info(f"Port{number}State", state)
            if rate:
                self.info(f"Port{number}Rate", f"{rate} Gb/sec")
            if layer:
                self.info(f"Port{number}LinkLayer", layer)
        self.close(2)

    def network(self, bus, name):
        self.open("PCIDev", pci_busid=f"0000:{bus:02x}:00.0",
                  pci_type="0200 [8086:1521] [8086:0001] 01", pci_link_speed="0.500000")
        self.open("OSDev", True, name=name, osdev_type=2)
        self.close()

    def text(self, distances=None):
        head = ['<?xml version="1.0" encoding="UTF-8"?>',
                '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
                "<!-- Written by make_topologies.py. -->", '<topology version="2.0">']
        tail = []
        if distances:
            count = len(distances)
            names = "".join(f"{i} " for i in range(count))
            values = "".join(f"{v} " for row in distances for v in row)
            tail = [f'  <distances2 type="NUMANode" nbobjs="{count}" kind="5" name="NUMALatency" '
                    'indexing="os">',
                    f'    <indexes length="{len(names)}">{names}</indexes>',
                    f'    <u64values length="{len(values)}">{values}</u64values>',
                    "  </distances2>"]
        return "\n".join(head + self.lines + tail + ["</topology>", ""])


INFINIBAND = (4, 400, "InfiniBand")


def eight_by_eight():
    """2 packages, 4 PCIe switches, each with 2 GPUs and 2 HCAs."""
    m = Machine()
    m.place("Machine", (0, 16), (0, 2), os_index=0)
    for package in range(2):
        cpus = (8 * package, 8)
        m.place("Package", cpus, (package, 1), os_index=package)
        m.node(package, cpus)
        for switch in range(2):
            index = 2 * package + switch
            root = 0x10 + 0x20 * index  # of the host bridge; the switch is below its port
            m.host_bridge(root, root + 6)
            m.bridge(1, root, 1, root + 1, root + 6)
            m.bridge(2, root + 1, 0, root + 2, root + 6)
            for port in range(4):
                m.bridge(3, root + 2, port, root + 3 + port)
                if port < 2:
                    m.gpu(root + 3 + port)
                else:
                    m.hca(root + 3 + port, f"mlx5_{2 * index + port - 2}", [INFINIBAND])
                m.close()
            m.close(3)
        m.close()
    m.close()
    return m.text([[10, 21], [21, 10]])


def two_sockets_one_hca():
    m = Machine()
    m.place("Machine", (0, 8), (0, 2), os_index=0)
    for package in range(2):
        cpus = (4 * package, 4)
        m.place("Package", cpus, (package, 1), os_index=package)
        m.node(package, cpus)
        root = 0x10 + 0x40 * package
        m.host_bridge(root, root + 1)
        m.bridge(1, root, 1, root + 1)
        if package == 0:
            m.gpu(root + 1, cuda=False)
        else:
            m.hca(root + 1, "mlx5_0", [(4, 200, "InfiniBand")])
        m.close(3)
    m.close()
    return m.text([[10, 20], [20, 10]])


def no_hca():
    m = Machine()
    m.place("Machine", (0, 4), (0, 1), os_index=0)
    m.place("Package", (0, 4), (0, 1), os_index=0)
    m.node(0, (0, 4))
    m.host_bridge(0, 2)
    for port in range(2):
        m.bridge(1, 0, 1 + port, 1 + port)
        if port == 0:
            m.gpu(1)
        else:
            m.network(2, "eth0")
        m.close()
    m.close(3)
    return m.text()


def ports():
    """One package; the links of several ports differ. One GPU has a switch with an HCA to itself."""
    m = Machine()
    m.place("Machine", (0, 4), (0, 1), os_index=0)
    m.place("Package", (0, 4), (0, 1), os_index=0)
    m.node(0, (0, 4))
    m.host_bridge(0x00, 0x0f)
    m.bridge(1, 0, 1, 1, 4)  # a switch with a GPU and a dual-port HCA whose first link is down
    m.bridge(2, 1, 0, 2, 4)
    m.bridge(3, 2, 0, 3)
    m.gpu(3)
    m.close()
    m.bridge(3, 2, 1, 4)
    m.hca(4, "mlx5_0", [(1, 2.5, "InfiniBand"), (4, 100, "InfiniBand")])
    m.close(3)
    m.bridge(1, 0, 2, 5)  # Ethernet: two ports of different speed
    m.hca(5, "mlx5_1", [(4, 100, "Ethernet"), (4, 200, "Ethernet")])
    m.close()
    m.bridge(1, 0, 3, 6)  # initializing, and armed
    m.hca(6, "mlx5_2", [(2, 400, "InfiniBand"), (3, 400, "InfiniBand")])
    m.close()
    m.bridge(1, 0, 4, 7)  # two equal ports
    m.hca(7, "mlx5_10", [(4, 200, "Ethernet"), (4, 200, "Ethernet")])
    m.close(4)
    return m.text()


def numa_nodes():
    """3 packages, the first with two NUMA nodes; HCAs at a node, at packages and at the machine."""
    m = Machine()
    m.place("Machine", (0, 16), (0, 4), os_index=0)
    m.place("Package", (0, 8), (0, 2), os_index=0)
    for node in range(2):
        m.place("Group", (4 * node, 4), (node, 1), kind=1001, subkind=0)
        m.node(node, (4 * node, 4))
        if node == 0:
            m.host_bridge(0x10, 0x11)
            m.bridge(1, 0x10, 0, 0x11)
            m.hca(0x11, "mlx5_0", [(4, 0, "")])
            m.close(2)
        m.close()
    m.close()
    for package in (1, 2):
        m.place("Package", (4 + 4 * package, 4), (1 + package, 1), os_index=package)
        m.node(1 + package, (4 + 4 * package, 4))
        m.host_bridge(0x10 + 0x20 * package, 0x12 + 0x20 * package)
        m.bridge(1, 0x10 + 0x20 * package, 0, 0x11 + 0x20 * package)
        m.hca(0x11 + 0x20 * package, f"mlx5_{package}", [(4, 0, "")])
        m.close(3)
    m.host_bridge(0x80, 0x81)
    m.bridge(1, 0x80, 0, 0x81)
    m.hca(0x81, "mlx5_3", [(4, 0, "")])
    m.close(3)
    return m.text([[10, 12, 30, 20], [12, 10, 30, 20], [30, 30, 10, 40], [20, 20, 40, 10]])


FILES = {"8gpu-8hca-switches.xml": eight_by_eight, "2sockets-1hca.xml": two_sockets_one_hca,
         "no-hca.xml": no_hca, "multi-port-link-down.xml": ports, "numa-nodes.xml": numa_nodes}

for name, make in FILES.items():
    path = FOLDER / name
    if "--check" in sys.argv[1:]:
        if not path.exists() or path.read_text() != make():
            raise SystemExit(f"{name} is not what make_topologies.py writes; run it")
    else:
        path.write_text(make())
