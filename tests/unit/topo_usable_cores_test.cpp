// labels: quick
// How many cores and how much memory a process may use: the affinity mask against sched_getaffinity, limits against
// cgroup files that the test writes itself.
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/topo/usable.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/temporary_folder.hpp"

namespace {

constexpr const char* kV2Mount =
    "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1Mounts =
    "31 20 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"
    "32 20 0:28 /docker/box /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";

// A folder that stands for the root of the file system.
class Root {
 public:
  void write(const std::string& file, const std::string& text) {
    const std::string path = folder_.path() + file;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  mep_test::TemporaryFolder folder_;
};

void v2_smallest_quota_of_all_levels_counts(void**) {
  Root root;
  root.write("/sys/fs/cgroup/a/cpu.max", "600000 100000\n");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root.write("/sys/fs/cgroup/a/b/c/cpu.max", "900000 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/a/b/c\n", kV2Mount, root.path()), 6);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/a/b/c\n", kV2Mount, root.path()), 3);
  // A group beside ours does not matter.
  assert_int_equal(mep::cgroup_core_limit("0::/other\n", kV2Mount, root.path()), 0);
}

void part_of_a_core_counts_as_less(void**) {
  Root root;
  root.write("/sys/fs/cgroup/g/cpu.max", "190000 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 1);
  root.write("/sys/fs/cgroup/g/cpu.max", "20000 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 1);
  root.write("/sys/fs/cgroup/g/cpu.max", "399999 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 3);
}

void root_group_has_its_file_at_the_mount(void**) {
  Root root;
  root.write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/\n", kV2Mount, root.path()), 2);
}

void v1_quota_below_the_mounted_group(void**) {
  Root root;
  root.write("/cg/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("/cg/cpu/cpu.cfs_period_us", "100000\n");
  root.write("/cg/cpu/job/cpu.cfs_quota_us", "500000\n");
  root.write("/cg/cpu/job/cpu.cfs_period_us", "100000\n");
  const std::string groups = "7:memory:/m\n5:cpu,cpuacct:/docker/box/job\n";
  assert_int_equal(mep::cgroup_core_limit(groups, kV1Mounts, root.path()), 5);
  // The group that is mounted itself, and one outside of it.
  assert_int_equal(mep::cgroup_core_limit("5:cpu,cpuacct:/docker/box\n", kV1Mounts, root.path()),
                   0);
  root.write("/cg/cpu/cpu.cfs_quota_us", "400000\n");
  assert_int_equal(mep::cgroup_core_limit("5:cpu,cpuacct:/docker/box\n", kV1Mounts, root.path()),
                   4);
  assert_int_equal(mep::cgroup_core_limit("5:cpu,cpuacct:/docker/boxer\n", kV1Mounts, root.path()),
                   4);
}

void nonsense_is_no_limit(void**) {
  Root root;
  root.write("/sys/fs/cgroup/g/cpu.max", "lots of it\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 0);
  root.write("/sys/fs/cgroup/g/cpu.max", "100000 0\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 0);
  root.write("/sys/fs/cgroup/g/cpu.max", "-5 100000\n");
  assert_int_equal(mep::cgroup_core_limit("0::/g\n", kV2Mount, root.path()), 0);
  for (const char* groups : {"", "x", ":", "0:", "0::", "\n\n", "0::/missing\n"}) {
    assert_int_equal(mep::cgroup_core_limit(groups, kV2Mount, root.path()), 0);
    assert_int_equal(mep::cgroup_core_limit(groups, "- - -\n", root.path()), 0);
  }
}

void the_least_memory_limit_counts(void**) {
  Root root;
  root.write("/sys/fs/cgroup/a/memory.max", "8000000\n");
  root.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  root.write("/sys/fs/cgroup/a/b/memory.high", "max\n");
  assert_int_equal(mep::cgroup_memory_limit("0::/a/b\n", kV2Mount, root.path()), 8000000);
  root.write("/sys/fs/cgroup/a/b/memory.high", "5000000\n");
  assert_int_equal(mep::cgroup_memory_limit("0::/a/b\n", kV2Mount, root.path()), 5000000);
  assert_int_equal(mep::cgroup_memory_limit("0::/c\n", kV2Mount, root.path()), 0);
  root.write("/cg/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
  const std::string v1 = "7:memory:/m\n5:cpu,cpuacct:/docker/box/job\n";
  assert_int_equal(mep::cgroup_memory_limit(v1, kV1Mounts, root.path()), 0);
  root.write("/cg/memory/memory.limit_in_bytes", "3000000\n");
  assert_int_equal(mep::cgroup_memory_limit(v1, kV1Mounts, root.path()), 3000000);
  assert_true(mep::usable_memory() > 0);
}

void affinity_is_the_kernels(void**) {
  cpu_set_t all;
  CPU_ZERO(&all);
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) last = cpu;
  }
  std::vector<uint64_t> words;
  assert_int_equal(mep::affinity_mask(&words), MEP_SUCCESS);
  assert_int_equal(words.size(), static_cast<size_t>(last) / 64 + 1);
  for (int cpu = 0; cpu <= last; ++cpu) {
    const bool is_in = ((words[static_cast<size_t>(cpu) / 64] >> (cpu % 64)) & 1) != 0;
    assert_int_equal(is_in, CPU_ISSET(cpu, &all) != 0);
  }
  assert_in_range(mep::usable_cores(), 1, CPU_COUNT(&all));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(mep::usable_cores(), 1);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(v2_smallest_quota_of_all_levels_counts),
      cmocka_unit_test(part_of_a_core_counts_as_less),
      cmocka_unit_test(root_group_has_its_file_at_the_mount),
      cmocka_unit_test(v1_quota_below_the_mounted_group),
      cmocka_unit_test(nonsense_is_no_limit),
      cmocka_unit_test(the_least_memory_limit_counts),
      cmocka_unit_test(affinity_is_the_kernels),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
