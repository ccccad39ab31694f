// Control links and the hello: right frames, and bytes of somebody who means harm.
// labels: quick threads tsan asan
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "core/bootstrap/control_link.hpp"
#include "core/bootstrap/handshake.hpp"
#include "core/bootstrap/hello.hpp"
#include "support/cmocka_cpp.hpp"
#include "support/random_numbers.hpp"

namespace {

using Bytes = std::vector<unsigned char>;

struct Pair {
  mep::UniqueFd raw;  // the peer, byte by byte
  std::unique_ptr<mep::ControlLink> link;
};

Pair make_pair() {
  int sockets[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
  return {mep::UniqueFd(sockets[0]), std::make_unique<mep::ControlLink>(mep::UniqueFd(sockets[1]))};
}

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

void append(Bytes* bytes, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes->push_back(static_cast<unsigned char>(value >> (8 * i)));
}

// The wire format, written once more by its description.
Bytes frame_bytes(uint16_t type, const Bytes& payload, uint16_t descriptors = 0,
                  uint32_t magic = 0x3150454d, uint32_t reserved = 0) {
  Bytes bytes;
  append(&bytes, magic, 4);
  append(&bytes, type, 2);
  append(&bytes, descriptors, 2);
  append(&bytes, payload.size(), 4);
  append(&bytes, reserved, 4);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

void write_raw(int fd, const Bytes& bytes) {
  assert_int_equal(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
}

void write_with_descriptors(int fd, const Bytes& bytes, int count) {
  std::vector<int> fds(static_cast<size_t>(count));
  for (int& copy : fds) copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  iovec part{const_cast<unsigned char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* item = CMSG_FIRSTHDR(&message);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  memcpy(CMSG_DATA(item), fds.data(), fds.size() * sizeof(int));
  assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), bytes.size());
  for (const int copy : fds) close(copy);
}

mep_result_t receive_all(mep::ControlLink* link, std::vector<mep::Frame>* frames) {
  return link->receive([frames](mep::Frame& frame) {
    frames->push_back(std::move(frame));
    return true;
  });
}

void expect_refusal(mep::ControlLink* link, const char* part) {
  std::vector<mep::Frame> frames;
  assert_int_equal(receive_all(link, &frames), MEP_ERR_DENIED);
  if (strstr(mep::last_error_text(), part) == nullptr) {
    fail_msg("the text \"%s\" lacks \"%s\"", mep::last_error_text(), part);
  }
  assert_int_equal(receive_all(link, &frames), MEP_ERR_DENIED);  // and for good
  assert_int_equal(frames.size(), 0);
}

void frames_arrive_whole_in_order_with_descriptors(void**) {
  Pair pair = make_pair();
  mep::ControlLink peer(std::move(pair.raw));
  const int fd = pair.link->fd();
  const int before = open_descriptors();
  for (unsigned i = 0; i < 5; ++i) {
    const std::vector<std::byte> payload(i * 1000, std::byte{static_cast<unsigned char>(i)});
    const std::vector<int> fds(i % 5, fd);
    assert_int_equal(peer.send(static_cast<uint16_t>(i + 1), payload, fds), MEP_SUCCESS);
  }
  std::vector<mep::Frame> frames;
  assert_int_equal(receive_all(pair.link.get(), &frames), MEP_SUCCESS);
  assert_int_equal(frames.size(), 5);
  for (unsigned i = 0; i < 5; ++i) {
    assert_int_equal(frames[i].type, i + 1);
    assert_int_equal(frames[i].payload.size(), i * 1000);
    assert_int_equal(frames[i].fds.size(), i % 5);
    for (const mep::UniqueFd& copy : frames[i].fds) {
      assert_int_equal(fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
  }
  frames.clear();
  assert_int_equal(open_descriptors(), before);
}

void a_frame_may_come_byte_by_byte(void**) {
  Pair pair = make_pair();
  Bytes bytes = frame_bytes(9, {1, 2, 3});
  const Bytes second = frame_bytes(10, {});
  bytes.insert(bytes.end(), second.begin(), second.end());
  std::vector<mep::Frame> frames;
  for (const unsigned char byte : bytes) {
    write_raw(pair.raw.get(), {byte});
    assert_int_equal(receive_all(pair.link.get(), &frames), MEP_SUCCESS);
  }
  assert_int_equal(frames.size(), 2);
  assert_int_equal(frames[0].payload.size(), 3);
  assert_int_equal(frames[1].type, 10);
}

void the_handler_can_stop_between_frames(void**) {
  Pair pair = make_pair();
  for (uint16_t type = 1; type <= 3; ++type) write_raw(pair.raw.get(), frame_bytes(type, {}));
  std::vector<uint16_t> types;
  for (int i = 0; i < 3; ++i) {
    assert_int_equal(pair.link->receive([&](mep::Frame& frame) {
      types.push_back(frame.type);
      return false;
    }),
                     MEP_SUCCESS);
    assert_int_equal(types.size(), i + 1);
  }
  assert_true((types == std::vector<uint16_t>{1, 2, 3}));
}

void the_end_comes_after_the_last_frame(void**) {
  Pair pair = make_pair();
  write_raw(pair.raw.get(), frame_bytes(5, {7}));
  pair.raw.reset();
  std::vector<mep::Frame> frames;
  assert_int_equal(receive_all(pair.link.get(), &frames), MEP_ERR_PEER_FAILED);
  assert_int_equal(frames.size(), 1);
  assert_int_equal(pair.link->send(5, {}), MEP_ERR_PEER_FAILED);
}

// A peer's last words stay readable when a send finds that it is gone.
void last_words_survive_a_failed_send(void**) {
  Pair pair = make_pair();
  assert_int_equal(pair.link->send(4, {}), MEP_SUCCESS);  // never read: the close is a reset
  write_raw(pair.raw.get(), frame_bytes(5, {7}));
  pair.raw.reset();
  assert_int_equal(pair.link->send(6, {}), MEP_ERR_PEER_FAILED);
  std::vector<mep::Frame> frames;
  assert_int_equal(receive_all(pair.link.get(), &frames), MEP_ERR_PEER_FAILED);
  assert_int_equal(frames.size(), 1);
}

void a_truncated_frame_is_an_end(void**) {
  const Bytes whole = frame_bytes(5, {1, 2, 3, 4});
  for (size_t length = 1; length < whole.size(); ++length) {
    Pair pair = make_pair();
    write_raw(pair.raw.get(), Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length)));
    pair.raw.reset();
    std::vector<mep::Frame> frames;
    assert_int_equal(receive_all(pair.link.get(), &frames), MEP_ERR_PEER_FAILED);
    assert_non_null(strstr(mep::last_error_text(), "within a frame"));
    assert_int_equal(frames.size(), 0);
  }
}

void malformed_headers_are_refused(void**) {
  struct Case {
    Bytes bytes;
    const char* text;
  };
  Bytes oversized = frame_bytes(5, {});
  oversized[8] = 1;  // 1 MiB + 1
  oversized[10] = 0x10;
  const std::vector<Case> cases = {
      {frame_bytes(5, {}, 0, 0x20544547), "not a MEP frame"},
      {frame_bytes(0, {}), "malformed"},
      {frame_bytes(5, {}, 0, 0x3150454d, 1), "malformed"},
      {frame_bytes(5, {}, 5), "announces 5 descriptors"},
      {frame_bytes(5, {}, 2), "brings 0"},
      {oversized, "oversized"},
  };
  for (const Case& entry : cases) {
    Pair pair = make_pair();
    write_raw(pair.raw.get(), entry.bytes);
    expect_refusal(pair.link.get(), entry.text);
  }
}

void surplus_descriptors_are_closed_and_refused(void**) {
  for (const int count : {1, 3, 4, 5, 20}) {
    Pair pair = make_pair();
    const int before = open_descriptors();
    // The frame announces one less than come, or none.
    const auto announced = static_cast<uint16_t>(count <= 4 ? count - 1 : 0);
    write_with_descriptors(pair.raw.get(), frame_bytes(5, {1}, announced), count);
    std::vector<mep::Frame> frames;
    assert_int_equal(receive_all(pair.link.get(), &frames), MEP_ERR_DENIED);
    frames.clear();
    assert_int_equal(open_descriptors(), before);
  }
}

// The frame comes all the same, and says so; the next one's are its own.
void descriptors_without_room_are_told_of(void**) {
  Pair pair = make_pair();
  mep::ControlLink peer(std::move(pair.raw));
  const int fd = pair.link->fd();
  const int two[] = {fd, fd};
  rlimit before{};
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = dup(0);
  close(lowest);
  for (const int room : {0, 1}) {
    assert_int_equal(peer.send(7, {}, two), MEP_SUCCESS);
    rlimit limit = before;
    limit.rlim_cur = static_cast<rlim_t>(lowest) + static_cast<rlim_t>(room);
    std::vector<mep::Frame> frames;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const mep_result_t received = receive_all(pair.link.get(), &frames);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(received, MEP_SUCCESS);
    assert_int_equal(frames.size(), 1);
    assert_true(frames[0].lost_descriptors);
    assert_int_equal(frames[0].fds.size(), room);
    frames.clear();
    assert_int_equal(peer.send(8, {}, two), MEP_SUCCESS);
    assert_int_equal(receive_all(pair.link.get(), &frames), MEP_SUCCESS);
    assert_int_equal(frames.size(), 1);
    assert_false(frames[0].lost_descriptors);
    assert_int_equal(frames[0].fds.size(), 2);
  }
}

// More than the kernel takes is queued, goes out with flush_output(), and has a bound.
void output_is_queued_up_to_a_bound(void**) {
  Pair pair = make_pair();
  mep::ControlLink peer(std::move(pair.raw));
  const int before = open_descriptors();
  const std::vector<std::byte> payload(512 << 10, std::byte{3});
  const int fd = peer.fd();
  int sent = 0;
  mep_result_t result = MEP_SUCCESS;
  while ((result = peer.send(8, payload, std::span<const int>(&fd, 1))) == MEP_SUCCESS) {
    assert_in_range(++sent, 1, 1000);
  }
  assert_int_equal(result, MEP_ERR_NO_MEMORY);
  assert_true(peer.has_queued_output());
  int received = 0;
  while (peer.has_queued_output()) {
    assert_int_equal(peer.flush_output(), MEP_SUCCESS);
    assert_int_equal(pair.link->receive([&](mep::Frame& frame) {
      received += frame.payload == payload && frame.fds.size() == 1 ? 1 : 1000000;
      return true;
    }),
                     MEP_SUCCESS);
  }
  std::vector<mep::Frame> rest;
  assert_int_equal(receive_all(pair.link.get(), &rest), MEP_SUCCESS);
  assert_int_equal(received + static_cast<int>(rest.size()), sent);
  rest.clear();
  assert_int_equal(open_descriptors(), before);
}

std::vector<std::byte> long_payload() {
  std::vector<std::byte> payload((size_t{5} << 20) + 1);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7 + i / 4096);
  return payload;
}

// Longer than a frame: it comes whole, between what was sent before and after it.
void a_long_message_comes_in_pieces(void**) {
  for (const bool sealed : {false, true}) {
    Pair pair = make_pair();
    mep::ControlLink peer(std::move(pair.raw));
    pair.link->limit_payload(mep::kMaxMessageBytes);
    if (sealed) {
      assert_int_equal(mep::prepare_crypto(), MEP_SUCCESS);
      const mep::StreamKey key{};
      mep::StreamHeader header{};
      peer.seal_output(std::make_unique<mep::FrameSealer>(key, &header));
      pair.link->open_input(std::make_unique<mep::FrameOpener>(key, header));
    }
    const std::vector<std::byte> payload = long_payload();
    const std::vector<std::byte> small(3, std::byte{9});
    assert_int_equal(peer.send(64, small), MEP_SUCCESS);
    assert_int_equal(peer.send(65, payload), MEP_SUCCESS);
    assert_int_equal(peer.send(66, small), MEP_SUCCESS);
    std::vector<mep::Frame> frames;
    while (frames.size() < 3) {
      assert_int_equal(peer.flush_output(), MEP_SUCCESS);
      std::vector<mep::Frame> some;
      assert_int_equal(receive_all(pair.link.get(), &some), MEP_SUCCESS);
      for (mep::Frame& frame : some) frames.push_back(std::move(frame));
    }
    assert_true(frames[0].type == 64 && frames[1].type == 65 && frames[2].type == 66);
    assert_true(frames[0].payload == small && frames[2].payload == small);
    assert_true(frames[1].payload == payload);
  }
}

// Pieces beyond what the peer may say at once, of different types, or with descriptors.
void bad_pieces_are_refused(void**) {
  {
    Pair pair = make_pair();  // as long as nobody has said more, one frame is all
    mep::ControlLink peer(std::move(pair.raw));
    assert_int_equal(peer.send(65, long_payload()), MEP_SUCCESS);
    mep_result_t result = MEP_SUCCESS;
    while (result == MEP_SUCCESS) {
      (void)peer.flush_output();
      std::vector<mep::Frame> frames;
      result = receive_all(pair.link.get(), &frames);
      assert_true(frames.empty());
    }
    assert_int_equal(result, MEP_ERR_DENIED);
    assert_non_null(strstr(mep::last_error_text(), "oversized"));
  }
  Bytes mixed = frame_bytes(mep::kMoreFollows | 5, {1});
  const Bytes other = frame_bytes(6, {2});
  mixed.insert(mixed.end(), other.begin(), other.end());
  Bytes small = frame_bytes(mep::kMoreFollows | 5, Bytes(100, 'x'));
  small.insert(small.end(), small.begin(), small.end());
  const std::vector<std::pair<Bytes, const char*>> cases = {
      {mixed, "among the pieces"},
      {small, "oversized"},
      {frame_bytes(mep::kMoreFollows, {1}), "malformed"},
      {frame_bytes(mep::kMoreFollows | 5, {1}, 1), "malformed"}};
  for (const auto& [bytes, text] : cases) {
    Pair pair = make_pair();
    pair.link->limit_payload(150);
    write_raw(pair.raw.get(), bytes);
    expect_refusal(pair.link.get(), text);
  }
}

void threads_may_send_at_once(void**) {
  Pair pair = make_pair();
  mep::ControlLink peer(std::move(pair.raw));
  constexpr int kThreads = 4;
  constexpr int kFrames = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&peer, t] {
      for (int i = 0; i < kFrames; ++i) {
        const std::vector<std::byte> payload(static_cast<size_t>(i), std::byte{1});
        while (peer.send(static_cast<uint16_t>(t + 1), payload) == MEP_ERR_NO_MEMORY) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  const mep::Deadline limit = mep::Deadline::after_ms(60000);
  int total = 0;
  while (total < kThreads * kFrames && !limit.expired()) {
    (void)peer.flush_output();
    assert_int_equal(pair.link->receive([&](mep::Frame& frame) {
      int& expected = next[static_cast<size_t>(frame.type - 1)];
      assert_int_equal(frame.payload.size(), expected);
      ++expected;
      ++total;
      return true;
    }),
                     MEP_SUCCESS);
    pollfd entry{pair.link->fd(), POLLIN, 0};
    poll(&entry, 1, 1);
  }
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(total, kThreads * kFrames);
}

// Random damage to a right stream: never a crash, never a frame beyond its bounds, never a leak.
void random_bytes_do_no_harm(void**) {
  std::mt19937_64 random(mep_reference::seed_of_run());
  const int before = open_descriptors();
  for (int round = 0; round < 3000; ++round) {
    Pair pair = make_pair();
    Bytes stream;
    for (uint64_t i = random() % 4 + 1; i > 0; --i) {
      const Bytes frame =
          frame_bytes(static_cast<uint16_t>(random() % 70), Bytes(random() % 200, 'x'),
                      static_cast<uint16_t>(random() % 8 == 0 ? random() % 6 : 0));
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    for (uint64_t i = random() % 4; i > 0; --i) {
      stream[random() % stream.size()] = static_cast<unsigned char>(random());
    }
    stream.resize(random() % stream.size() + 1);
    if (random() % 2 == 0) {
      write_with_descriptors(pair.raw.get(), stream, static_cast<int>(random() % 6 + 1));
    } else {
      write_raw(pair.raw.get(), stream);
    }
    if (random() % 2 == 0) pair.raw.reset();
    std::vector<mep::Frame> frames;
    const mep_result_t result = receive_all(pair.link.get(), &frames);
    assert_true(result == MEP_SUCCESS || result == MEP_ERR_DENIED || result == MEP_ERR_PEER_FAILED);
    for (const mep::Frame& frame : frames) {
      assert_true(frame.payload.size() <= stream.size() && frame.fds.size() <= 4);
    }
  }
  assert_int_equal(open_descriptors(), before);
}

mep::Hello example_hello() {
  mep::Hello hello;
  hello.kind = mep::HelloKind::kInit;
  hello.size = 4;
  hello.max_size = 6;
  hello.library_version = 100;
  hello.job = "a job";
  hello.identity.slot = 3;
  hello.identity.incarnation = 77;
  hello.identity.host = 5;
  hello.identity.process_token = 6;
  hello.identity.pid = 4711;
  hello.key.fill(std::byte{9});
  return hello;
}

void a_hello_survives_its_way(void**) {
  mep::Hello out;
  assert_int_equal(mep::decode_hello(mep::encode_hello(example_hello()), &out), MEP_SUCCESS);
  assert_int_equal(out.identity.slot, 3);
  assert_int_equal(out.identity.incarnation, 77);
  assert_int_equal(out.size, 4);
  assert_int_equal(out.max_size, 6);
  assert_string_equal(out.job.c_str(), "a job");
  assert_true(out.key == example_hello().key);
}

void a_damaged_hello_is_refused_or_within_bounds(void**) {
  const std::vector<std::byte> whole = mep::encode_hello(example_hello());
  mep::Hello out;
  for (size_t length = 0; length < whole.size(); ++length) {
    assert_int_equal(mep::decode_hello(std::span(whole.data(), length), &out), MEP_ERR_DENIED);
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  assert_int_equal(mep::decode_hello(longer, &out), MEP_ERR_DENIED);
  std::vector<std::byte> other_version = whole;
  other_version[0] = std::byte{9};
  assert_int_equal(mep::decode_hello(other_version, &out), MEP_ERR_VERSION);
  assert_non_null(strstr(mep::last_error_text(), "protocol 9"));

  std::mt19937_64 random(mep_reference::seed_of_run());
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> damaged = whole;
    for (uint64_t i = random() % 6 + 1; i > 0; --i) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    mep::Hello hello;
    if (mep::decode_hello(damaged, &hello) != MEP_SUCCESS) continue;
    assert_true(hello.identity.slot < 4096 && hello.size >= 0 && hello.size <= hello.max_size);
    assert_true(hello.job.size() <= 255);
  }
}

void a_peers_text_is_made_printable(void**) {
  mep::Abort abort;
  abort.text = "bad\x1b[2Jnews\n";
  abort.code = 5;  // no error
  mep::Abort out;
  assert_true(mep::decode_abort(mep::encode_abort(abort), &out));
  assert_string_equal(out.text.c_str(), "bad?[2Jnews?");
  assert_int_equal(out.code, MEP_ERR_BOOTSTRAP);
  assert_false(mep::decode_abort({}, &out));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(frames_arrive_whole_in_order_with_descriptors),
      cmocka_unit_test(a_frame_may_come_byte_by_byte),
      cmocka_unit_test(the_handler_can_stop_between_frames),
      cmocka_unit_test(the_end_comes_after_the_last_frame),
      cmocka_unit_test(last_words_survive_a_failed_send),
      cmocka_unit_test(a_truncated_frame_is_an_end),
      cmocka_unit_test(malformed_headers_are_refused),
      cmocka_unit_test(surplus_descriptors_are_closed_and_refused),
      cmocka_unit_test(descriptors_without_room_are_told_of),
      cmocka_unit_test(output_is_queued_up_to_a_bound),
      cmocka_unit_test(a_long_message_comes_in_pieces),
      cmocka_unit_test(bad_pieces_are_refused),
      cmocka_unit_test(threads_may_send_at_once),
      cmocka_unit_test(random_bytes_do_no_harm),
      cmocka_unit_test(a_hello_survives_its_way),
      cmocka_unit_test(a_damaged_hello_is_refused_or_within_bounds),
      cmocka_unit_test(a_peers_text_is_made_printable),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
