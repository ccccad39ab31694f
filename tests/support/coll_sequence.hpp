// Random sequences of mixed operations, the same on all ranks of a world: blocking and nonblocking
// with several outstanding, different kinds, roots and sizes, on the world and on comms split from
// it. Each rank adds delays of its own.
#pragma once

#include <sched.h>

#include "support/coll_cases.hpp"
#include "support/delays.hpp"

namespace mep_test {

inline Case random_case(RandomStream& shared, int size) {
  Case c;
  c.kind = static_cast<Kind>(shared.below(mep::kCollectiveCount));
  c.dtype = kAllTypes[shared.below(std::size(kAllTypes))];
  do {
    c.op = kAllOps[shared.below(std::size(kAllOps))];
  } while (!pair_exists(c.dtype, c.op));
  const uint64_t how_large = shared.below(20);
  if (how_large < 13) {
    c.count = small_count(shared, c.dtype);
  } else {
    const uint64_t limit = how_large < 18 ? 20'000 : 600'000 / static_cast<uint64_t>(size);
    c.count = shared.below(limit / element_bytes(c.dtype));
  }
  if (!c.facts().has_data()) c.count = 0;
  c.root = static_cast<int>(shared.below(static_cast<uint64_t>(size)));
  c.in_place = shared.one_in(2);
  c.seed = shared.bits();
  return c;
}

class SequenceRank {
 public:
  SequenceRank(int world_rank, mep_comm_t world, uint64_t seed, Report& report)
      : report_(report), seed_(seed), own_(mix(seed, static_cast<uint64_t>(world_rank) + 77)) {
    add_channel(world);
    mep_comm_t child = nullptr;
    COLL_OK(report_, mep_comm_split(world, world_rank % 2, -world_rank, &child));
    add_channel(child);
    COLL_OK(report_, mep_comm_split(world, 3, world_rank, &child));
    add_channel(child);
  }

  void run(size_t steps) {
    RandomStream shared(seed_);
    for (size_t step = 0; step < steps && !report_.bad(); ++step) {
      // Draws must not depend on the rank: comms of one split may differ in size.
      Channel& channel = channels_[shared.below(channels_.size())];
      const uint64_t action = shared.below(4);
      const uint64_t pick = shared.bits();
      RandomStream of_case(mix(shared.bits(), channel.identity));
      linger();
      if (action == 0) {
        run_blocking(channel, random_case(of_case, channel.size));
      } else if (action <= 2 && channel.outstanding.size() < kMostOutstanding) {
        start(channel, random_case(of_case, channel.size));
      } else if (!channel.outstanding.empty()) {
        finish(channel, pick % channel.outstanding.size());
      }
    }
    for (Channel& channel : channels_) {
      while (!channel.outstanding.empty() && !report_.bad()) {
        // All of one comm: here the order may differ from rank to rank.
        finish(channel, own_.below(channel.outstanding.size()));
      }
    }
  }

  void close() {
    for (size_t i = 1; i < channels_.size(); ++i) {
      if (!report_.bad()) COLL_OK(report_, mep_comm_destroy(channels_[i].comm));
    }
  }

 private:
  static constexpr size_t kMostOutstanding = 6;
  struct Outstanding {
    std::unique_ptr<CaseRun> run;
    mep_request_t request;
    uint64_t seq;
  };
  struct Channel {
    mep_comm_t comm;
    int rank;
    int size;
    uint64_t identity;  // the same on all its ranks
    uint64_t seq;       // of the last call
    std::vector<Outstanding> outstanding;
  };

  void add_channel(mep_comm_t comm) {
    Channel channel{comm, 0, 1, 0, 0, {}};
    if (comm == nullptr) return;
    const char* name = "";
    COLL_OK(report_, mep_comm_rank(comm, &channel.rank));
    COLL_OK(report_, mep_comm_size(comm, &channel.size));
    COLL_OK(report_, mep_comm_name(comm, &name));
    for (const char* letter = name; *letter != '\0'; ++letter) {
      channel.identity = mix(channel.identity, static_cast<unsigned char>(*letter));
    }
    channels_.push_back(std::move(channel));
  }

  void linger() {
    const uint64_t how = own_.below(32);
    if (how == 0) pause_us(static_cast<unsigned>(own_.below(400)));
    if (how < 4) sched_yield();
  }

  void run_blocking(Channel& channel, const Case& c) {
    CaseRun run(c, channel.rank, channel.size);
    const mep_result_t result = run.run(channel.comm);
    note_seq(channel);
    if (result == MEP_SUCCESS) {
      run.check(report_);
    } else {
      report_.add("%s: %s (%s)", describe(c).c_str(), mep_result_string(result), mep_last_error());
    }
  }

  void note_seq(Channel& channel) {
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    COLL_OK(report_, mep_comm_last_op(channel.comm, &info));
    if (channel.seq != 0 && info.seq != channel.seq + 1) {
      report_.add("operation %llu follows %llu", static_cast<unsigned long long>(info.seq),
                  static_cast<unsigned long long>(channel.seq));
    }
    channel.seq = info.seq;
  }

  void start(Channel& channel, const Case& c) {
    Outstanding next{std::make_unique<CaseRun>(c, channel.rank, channel.size), nullptr, 0};
    COLL_OK(report_, next.run->start(channel.comm, &next.request));
    if (next.request == nullptr) return;
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    COLL_OK(report_, mep_request_info(next.request, &info));
    if (channel.seq != 0) COLL_CHECK(report_, info.seq == channel.seq + 1);
    channel.seq = next.seq = info.seq;
    channel.outstanding.push_back(std::move(next));
  }

  void finish(Channel& channel, size_t which) {
    Outstanding done = std::move(channel.outstanding[which]);
    channel.outstanding.erase(channel.outstanding.begin() + static_cast<std::ptrdiff_t>(which));
    uint64_t contributors = 0;
    mep_op_info_t info;
    mep_op_info_defaults(&info);
    info.contributors = &contributors;
    info.contributors_words = 1;
    mep_result_t result = MEP_SUCCESS;
    if (own_.one_in(2)) {
      result = mep_request_wait(&done.request, MEP_TIMEOUT_DEFAULT, nullptr, &info);
    } else {
      int32_t is_done = 0;
      while (result == MEP_SUCCESS && is_done == 0) {
        result = mep_request_test(&done.request, &is_done, &info);
        if (is_done == 0) sched_yield();
      }
    }
    if (result != MEP_SUCCESS) {
      report_.add("request %llu: %s (%s)", static_cast<unsigned long long>(done.seq),
                  mep_result_string(result), mep_last_error());
      return;
    }
    COLL_CHECK(report_, done.request == nullptr && info.seq == done.seq);
    COLL_CHECK(report_, contributors == (uint64_t{1} << channel.size) - 1);
    done.run->check(report_);
  }

  Report& report_;
  uint64_t seed_;
  RandomStream own_;
  std::vector<Channel> channels_;
};

inline void run_sequence(int rank, mep_comm_t world, uint64_t seed, size_t steps, Report& report) {
  SequenceRank sequence(rank, world, seed, report);
  if (report.bad()) return;
  sequence.run(steps);
  sequence.close();
}

}  // namespace mep_test
