// From "my rank and size" to a mesh: one authenticated control link to every peer.
//
// After bootstrap no rank is special. Each rank keeps its listener, so that any member can admit a
// joiner; on one host the listener is an abstract Unix socket and leaves nothing in the file
// system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "core/bootstrap/control_link.hpp"
#include "core/membership/config.hpp"
#include "mep.h"
#include "transport/death_words.hpp"
#include "transport/transport.hpp"

namespace mep {

// mep_comm_config_t after defaults and the environment: every field has its final value.
struct ResolvedConfig {
  uint32_t flags = 0;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t max_size = 1;
  uint32_t timeout_ms = 30000;
  uint32_t init_timeout_ms = 60000;
  uint32_t quorum = MEP_QUORUM_MAJORITY;
  uint32_t heartbeat_ms = membership::Config{}.heartbeat_interval_us / 1000;
  uint32_t suspect_ms = membership::Config{}.accuse_after_us / 1000;
  uint32_t num_sms = 0;  // 0: no limit
  std::string job;
  std::string rendezvous;
  std::string no_rendezvous;  // why the launcher's variables name none though ranks are elsewhere
  std::vector<std::string> transports;  // preference; empty: all
  std::string secret_file;
  bool maps = true;             // windows of peers; else puts and signals alone
  bool reads_memory = true;     // of other processes of the host, and they of this one
  bool allow_insecure = false;  // several hosts without a secret
  std::string metrics_file;     // pattern of a path, see rank_path(); empty: none
  bool keeps_flight = true;     // the last operations: in memory, or
  std::string flight_recorder;  // in files of this pattern, unless it is empty
  uint32_t metrics_interval_s = 10;
  std::string witness;                 // directory, with MEP_QUORUM_WITNESS
  const mep_store_t* store = nullptr;  // valid during start-up only
  bool rank_given = false;             // for joining: any absent rank or this one
};

// The use of a config: a joiner needs the job's name but neither rank nor size, and a launcher's
// rank means nothing to it. Threads need no way to find each other.
enum class ConfigUse { kStart, kJoin, kThreads };

// `config` may be null. Checks every field; texts name the field or variable and the value.
[[nodiscard]] mep_result_t resolve_config(const mep_comm_config_t* config, ResolvedConfig* out,
                                          ConfigUse use = ConfigUse::kStart);

// A rank's statement about itself to each peer when they connect, beside size, version and job.
struct SelfDescription {
  PeerIdentity identity;
  std::vector<std::byte> offer;           // transports' addresses, opaque here; at most 4096 bytes
  std::shared_ptr<DeathPage> death_page;  // for peers on this host; null: none
};

struct PeerLink {
  PeerIdentity identity;
  std::vector<std::byte> offer;
  UniqueFd
      pidfd;  // readable once the peer's process has ended; invalid: not available (same process)
  UniqueFd death_page;  // of a peer with a pidfd; invalid: it gave none
  std::unique_ptr<ControlLink> link;
  PeerSession session;
};

struct Gate;

struct Mesh {
  SelfDescription self;
  std::shared_ptr<Gate> gate;   // how joiners find this rank and are let in; null for threads
  UniqueFd listener;            // nonblocking, for joiners; invalid for ranks as threads and for a
                                // world of one that cannot grow
  std::vector<PeerLink> peers;  // all other ranks, by slot
  int32_t size = 0;             // of the world: as configured, or as its members told the joiner
  int32_t max_size = 0;
};

// A fresh identity for `rank` in this process: random incarnation (never 0), host id, process
// token.
[[nodiscard]] mep_result_t make_identity(uint32_t slot, PeerIdentity* out);

// A link of a finished mesh may hold frames already that came right behind the bootstrap's last
// one: call receive() on each once before waiting on its descriptor. Frame types below
// kFirstWorldFrame can still come from a peer whose own start failed at the last moment; its end of
// stream follows.

// Connects this rank to all `config.size - 1` others, or says which are missing or wrong. `offer`
// is made by the transports before. Bounded by config.init_timeout_ms.
[[nodiscard]] mep_result_t bootstrap_mesh(const ResolvedConfig& config, const SelfDescription& self,
                                          Mesh* out);

// The same for ranks as threads of this process: links by socketpair, nothing can fail but
// resources.
[[nodiscard]] mep_result_t bootstrap_threads(const std::vector<SelfDescription>& ranks,
                                             std::vector<Mesh>* out);

// A joiner's connection on `listener`: accepts all that wait; each becomes a PeerLink once its
// hello is complete and right (credentials, job, version). Never blocks; strangers are dropped with
// a log line.
class JoinListener {
 public:
  // `gate` may be null: a job on this host without a secret.
  JoinListener(int listener, const ResolvedConfig& config, const SelfDescription& self,
               std::shared_ptr<Gate> gate);
  ~JoinListener();
  JoinListener(const JoinListener&) = delete;
  JoinListener& operator=(const JoinListener&) = delete;
  // Readable when progress() has something to do.
  int fd() const;
  // Milliseconds until progress() has something to do for the time alone, at most `cap`.
  int wait_ms(int cap) const;
  void progress(std::vector<PeerLink>* arrived);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The joiner's side: finds the running job, connects to every member that listens. *out has links
// to those found; which of them are members is decided by membership later. config.rank is the slot
// asked for when config.rank_given, else the lowest slot whose name is free;
// out->self.identity.slot is the one that it got. `config` is made for ConfigUse::kJoin.
[[nodiscard]] mep_result_t bootstrap_join(const ResolvedConfig& config, const SelfDescription& self,
                                          const Deadline& deadline, Mesh* out);

}  // namespace mep
