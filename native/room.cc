#include "room.h"

#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

namespace kadril {
namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

int64_t read_number(const std::string& path) {
  int64_t value = unlimited;  // also for "max"
  if (FILE* file = std::fopen(path.c_str(), "re")) {
    if (std::fscanf(file, "%" SCNd64, &value) != 1) value = unlimited;
    std::fclose(file);
  }
  return value;
}

int64_t machine_room() {
  int64_t kilobytes = -1;
  if (FILE* file = std::fopen("/proc/meminfo", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file)) {
      if (std::sscanf(line, "MemAvailable: %" SCNd64 " kB", &kilobytes) == 1) break;
    }
    std::fclose(file);
  }
  return kilobytes < 0 ? unlimited : kilobytes * 1024;
}

// The limit of this process's own cgroup and of each one above it, version 2.
int64_t cgroup_room() {
  std::string group;
  if (FILE* file = std::fopen("/proc/self/cgroup", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, file)) {
      if (std::strncmp(line, "0::", 3) == 0) group.assign(line + 3, std::strcspn(line + 3, "\n"));
    }
    std::fclose(file);
  }
  int64_t room = unlimited;
  while (!group.empty() && group != "/") {
    const std::string folder = "/sys/fs/cgroup" + group;
    const int64_t limit = read_number(folder + "/memory.max");
    const int64_t used = read_number(folder + "/memory.current");
    if (limit != unlimited && used != unlimited) room = std::min(room, limit - used);
    group.resize(group.rfind('/'));
  }
  return room;
}

int64_t file_system_room(int descriptor) {
  struct statvfs status;
  // memfd lives on a kernel mount without a size of its own, which shows as zero blocks.
  if (fstatvfs(descriptor, &status) != 0 || status.f_blocks == 0) return unlimited;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

}  // namespace

int64_t available_room(int descriptor) {
  const int64_t room = std::min({machine_room(), cgroup_room(), file_system_room(descriptor)});
  return std::max<int64_t>(room, 0);
}

uint64_t total_memory() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return uint64_t{1} << 34;
  return static_cast<uint64_t>(info.totalram) * info.mem_unit;
}

}  // namespace kadril
