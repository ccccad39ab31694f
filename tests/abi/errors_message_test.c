/* Wrong arguments to messages and to what waits for several requests, on a world of one thread: as
 * errors_comm_test.c. And what these calls do when they are right, to the rank itself. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/protocol/types.def"
#include "world_of_one.h"

enum { kShort = 20, kUsual = 30000, kLarge = 4 * MEP_MESSAGE_EAGER_BYTES };

static int32_t anything_there(void) {
  int32_t found = -1;
  MUST(mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &found, NULL));
  return found;
}

static void send_number(float value, int32_t tag) {
  MUST(mep_send(&value, 1, MEP_FLOAT32, 0, tag, comm, NULL));
}

static float receive_number(int32_t tag) {
  float value = -1;
  MUST(mep_recv(&value, 1, MEP_FLOAT32, 0, tag, comm, NULL, NULL));
  return value;
}

static void sends(void** state) {
  (void)state;
  const float a[8] = {1};
  float unused = 0;
  mep_request_t request = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_FLOAT32, 0, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(NULL, 8, MEP_FLOAT32, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, 0, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_TYPES_END, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, SIZE_MAX, MEP_FLOAT32, 0, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_FLOAT32, 1, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_FLOAT32, MEP_ANY_SOURCE, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_FLOAT32, 0, MEP_ANY_TAG, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(a, 8, MEP_FLOAT32, 0, INT32_MIN, comm, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_send(a, 8, MEP_FLOAT32, 0, 0, comm, &unused));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, MEP_FLOAT32, 0, 0, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, MEP_FLOAT32, 0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(NULL, 8, MEP_FLOAT32, 0, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, 99, 0, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, SIZE_MAX, MEP_FLOAT32, 0, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, MEP_FLOAT32, 7, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, MEP_FLOAT32, -1, 0, comm, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_isend(a, 8, MEP_FLOAT32, 0, -1, comm, NULL, &request));
  assert_null(request);
  assert_int_equal(anything_there(), 0); /* nothing was sent */
}

static void receives(void** state) {
  (void)state;
  float b[8] = {2};
  mep_request_t request = NULL;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, MEP_FLOAT32, 0, 0, NULL, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(NULL, 8, MEP_FLOAT32, 0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, 0, 0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, MEP_TYPES_END, 0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, SIZE_MAX, MEP_FLOAT32, 0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, MEP_FLOAT32, 1, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, MEP_FLOAT32, -2, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_recv(b, 8, MEP_FLOAT32, 0, -2, comm, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_recv(b, 8, MEP_FLOAT32, 0, 0, comm, NULL, b));

  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_irecv(b, 8, MEP_FLOAT32, 0, 0, NULL, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_irecv(b, 8, MEP_FLOAT32, 0, 0, comm, NULL, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_irecv(NULL, 8, MEP_FLOAT32, 0, 0, comm, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_irecv(b, 8, 99, 0, 0, comm, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_irecv(b, SIZE_MAX, MEP_FLOAT32, 0, 0, comm, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_irecv(b, 8, MEP_FLOAT32, 1, 0, comm, NULL, NULL, &request));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_irecv(b, 8, MEP_FLOAT32, 0, -2, comm, NULL, NULL, &request));
  assert_null(request);

  int32_t found = 77;
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_probe(0, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_probe(1, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_probe(-2, 0, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_probe(0, -2, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iprobe(0, 0, NULL, &found, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iprobe(0, 0, comm, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iprobe(1, 0, comm, &found, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_iprobe(0, -2, comm, &found, NULL));

  /* No receive was left behind that would take this. */
  send_number(5, 0);
  assert_true(receive_number(0) == 5 && b[0] == 2);
}

static void both_at_one_time(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  const mep_result_t wrong = MEP_ERR_INVALID_ARGUMENT;
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_sendrecv(a, 8, 0, 0, b, 8, 0, 0, MEP_FLOAT32, NULL, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(NULL, 8, 0, 0, b, 8, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, 0, NULL, 8, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 1, 0, b, 8, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, -1, b, 8, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, 0, b, 8, 1, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, 0, b, 8, 0, -2, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, 0, b, 8, 0, 0, MEP_TYPES_END, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, SIZE_MAX, 0, 0, b, 8, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 8, 0, 0, b, SIZE_MAX, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(wrong, mep_sendrecv(a, 4, 0, 0, a + 3, 4, 0, 0, MEP_FLOAT32, comm, NULL, NULL));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_sendrecv(a, 8, 0, 0, b, 8, 0, 0, MEP_FLOAT32, comm, NULL, a));
  assert_int_equal(anything_there(), 0); /* neither half was done */
  send_number(5, 0);
  assert_true(receive_number(0) == 5 && b[0] == 2);

  mep_message_t message;
  mep_message_defaults(&message);
  MUST(mep_sendrecv(a, 8, 0, 4, b, 8, MEP_ANY_SOURCE, MEP_ANY_TAG, MEP_FLOAT32, comm, &message,
                    NULL));
  assert_true(b[0] == 1 && message.source == 0 && message.tag == 4 && message.bytes == sizeof a);
  EXPECT(MEP_ERR_CAPACITY, mep_sendrecv(a, 8, 0, 4, b, 2, 0, 4, MEP_FLOAT32, comm, &message, NULL));
  MUST(mep_recv(b, 8, MEP_FLOAT32, 0, 4, comm, NULL, NULL));
}

static void requests(void** state) {
  (void)state;
  float a[8] = {1}, b[8] = {2};
  mep_request_t both[3] = {NULL, NULL, NULL};
  mep_result_t results[3];
  mep_op_info_t info;
  int32_t index = 77, done = 77;
  mep_op_info_defaults(&info);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_cancel(NULL, &done));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_cancel(&both[0], NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitall(0, both, 0, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitany(3, both, 0, NULL, &index, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_cancel(&both[0], &done)); /* *request is NULL */
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitall(-1, both, 0, &done, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitall(1, NULL, 0, &done, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitany(-1, both, 0, &done, &index, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitany(1, NULL, 0, &done, &index, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitany(1, both, 0, &done, NULL, NULL));

  /* Cancel a collective, and a send. */
  MUST(mep_ibarrier(comm, NULL, &both[0]));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_request_cancel(&both[0], &done));
  assert_non_null(both[0]);
  MUST(mep_isend(a, 1, MEP_FLOAT32, 0, 1, comm, NULL, &both[1]));
  EXPECT(MEP_ERR_UNSUPPORTED, mep_request_cancel(&both[1], &done));
  MUST(mep_request_waitall(2, both, MEP_TIMEOUT_DEFAULT, NULL, results));
  assert_true(both[0] == NULL && both[1] == NULL && results[0] == 0 && results[1] == 0);
  /* Cancel a receive whose message has come. */
  MUST(mep_irecv(b, 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL, &both[0]));
  MUST(mep_request_cancel(&both[0], &done));
  assert_true(done == 0 && both[0] != NULL);
  MUST(mep_request_wait(&both[0], MEP_TIMEOUT_DEFAULT, NULL, &info));
  assert_true(b[0] == 1 && info.result == MEP_SUCCESS);

  /* Cancel one that waits: it takes nothing any more. */
  MUST(mep_irecv(b, 8, MEP_FLOAT32, 0, 1, comm, NULL, NULL, &both[1]));
  results[0] = results[1] = results[2] = 77;
  done = 77;
  MUST(mep_request_waitall(3, both, kShort, &done, results));
  assert_true(done == 0 && results[0] == 0 && results[1] == MEP_IN_PROGRESS && results[2] == 0);
  done = 77;
  MUST(mep_request_waitany(3, both, kShort, &done, &index, NULL));
  assert_true(done == 0 && index == -1);
  assert_non_null(both[1]);
  MUST(mep_request_info(both[1], &info));
  assert_int_equal(info.result, MEP_IN_PROGRESS);
  MUST(mep_request_cancel(&both[1], &done));
  assert_true(done == 1 && both[1] == NULL);
  send_number(6, 1);
  assert_true(receive_number(1) == 6 && b[0] == 1);

  /* Nothing to wait for. */
  index = 77;
  done = 77;
  MUST(mep_request_waitall(3, both, 0, &done, results));
  assert_int_equal(done, 1);
  MUST(mep_request_waitall(0, NULL, 0, &done, NULL));
  done = 77;
  MUST(mep_request_waitany(3, both, 0, &done, &index, NULL));
  assert_true(done == 1 && index == -1);

  /* The one that can end does. */
  MUST(mep_irecv(&b[0], 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL, &both[0]));
  MUST(mep_irecv(&b[1], 1, MEP_FLOAT32, 0, 2, comm, NULL, NULL, &both[2]));
  send_number(7, 2);
  MUST(mep_request_waitany(3, both, MEP_TIMEOUT_DEFAULT, &done, &index, &info));
  assert_true(done == 1 && index == 2 && both[2] == NULL && both[0] != NULL && b[1] == 7);
  MUST(mep_request_cancel(&both[0], &done));

  /* A failure is the result of its own request, and of the call. */
  send_number(1, 1);
  send_number(2, 2);
  MUST(mep_irecv(&b[0], 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL, &both[0]));
  MUST(mep_irecv(&b[1], 1, MEP_INT32, 0, 2, comm, NULL, NULL, &both[1]));
  EXPECT(MEP_ERR_MISMATCH, mep_request_waitall(2, both, MEP_TIMEOUT_DEFAULT, NULL, results));
  assert_true(results[0] == MEP_SUCCESS && results[1] == MEP_ERR_MISMATCH && b[0] == 1);
  assert_true(both[0] == NULL && both[1] == NULL);
  MUST(mep_irecv(&b[1], 1, MEP_INT32, 0, 2, comm, NULL, NULL, &both[1]));
  EXPECT(MEP_ERR_MISMATCH, mep_request_waitany(2, both, MEP_TIMEOUT_DEFAULT, NULL, &index, &info));
  assert_true(index == 1 && info.result == MEP_ERR_MISMATCH);
  assert_true(receive_number(2) == 2);
}

/* Refused before anything happens: the requests are there afterwards. */
static void refused_lists_and_bitmaps(void** state) {
  (void)state;
  float value = 5, got = 0;
  uint64_t bitmap = 0;
  int32_t index = -1, done = -1;
  mep_request_t list[3] = {NULL, NULL, NULL};
  mep_op_info_t info;
  mep_op_info_defaults(&info);
  info.failed = &bitmap;
  info.failed_words = 0;
  MUST(mep_irecv(&got, 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL, &list[0]));
  send_number(5, 1);
  list[2] = list[0];
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_request_waitall(3, list, MEP_TIMEOUT_DEFAULT, NULL, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT,
         mep_request_waitany(3, list, MEP_TIMEOUT_DEFAULT, NULL, &index, NULL));
  assert_true(list[0] != NULL && list[2] == list[0] && index == -1);
  list[2] = NULL;
  EXPECT(MEP_ERR_CAPACITY, mep_request_wait(&list[0], MEP_TIMEOUT_DEFAULT, NULL, &info));
  EXPECT(MEP_ERR_CAPACITY, mep_request_test(&list[0], &done, &info));
  EXPECT(MEP_ERR_CAPACITY, mep_request_waitany(3, list, MEP_TIMEOUT_DEFAULT, NULL, &index, &info));
  assert_true(list[0] != NULL && done == 0 && index == -1);
  info.failed_words = 1;
  MUST(mep_request_wait(&list[0], MEP_TIMEOUT_DEFAULT, NULL, &info));
  assert_true(got == value && list[0] == NULL);
}

static void time_is_over(void** state) {
  (void)state;
  char* const large = calloc(1, kLarge);
  float b[8];
  assert_non_null(large);
  MUST(mep_comm_set_timeout(comm, kShort));
  EXPECT(MEP_ERR_TIMEOUT, mep_recv(b, 8, MEP_FLOAT32, 0, 1, comm, NULL, NULL));
  EXPECT(MEP_ERR_TIMEOUT, mep_probe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, NULL));
  EXPECT(MEP_ERR_TIMEOUT, mep_send(large, kLarge, MEP_INT8, 0, 1, comm, NULL));
  MUST(mep_comm_set_timeout(comm, kUsual));
  while (anything_there() != 0) sched_yield(); /* the message is withdrawn, soon */
  MUST(mep_barrier(comm, NULL));
  free(large);
}

/* A receive that its message does not fit leaves it there, and says what it is. */
static void what_does_not_fit(void** state) {
  (void)state;
  const float a[8] = {1, 2, 3};
  float b[8] = {9, 9, 9};
  int64_t other[2] = {9, 9};
  mep_message_t message;
  mep_message_defaults(&message);
  MUST(mep_send(a, 3, MEP_FLOAT32, 0, 5, comm, NULL));
  EXPECT(MEP_ERR_CAPACITY, mep_recv(b, 2, MEP_FLOAT32, 0, 5, comm, &message, NULL));
  assert_true(message.source == 0 && message.tag == 5 && message.bytes == 12);
  mep_message_defaults(&message);
  EXPECT(MEP_ERR_MISMATCH, mep_recv(other, 2, MEP_INT64, 0, 5, comm, &message, NULL));
  assert_true(message.bytes == 12 && message.dtype == MEP_FLOAT32 && message.flags == 0);
  EXPECT(MEP_ERR_CAPACITY, mep_recv(NULL, 0, MEP_FLOAT32, 0, 5, comm, NULL, NULL));
  assert_true(b[0] == 9 && other[0] == 9);
  mep_message_defaults(&message);
  MUST(mep_probe(MEP_ANY_SOURCE, MEP_ANY_TAG, comm, &message));
  assert_int_equal(message.bytes, 12);
  MUST(mep_recv(b, 8, MEP_FLOAT32, MEP_ANY_SOURCE, MEP_ANY_TAG, comm, NULL, NULL));
  assert_true(b[0] == 1 && b[2] == 3 && b[3] == 0); /* the rest is untouched */
  assert_int_equal(anything_there(), 0);
  MUST(mep_send(NULL, 0, MEP_FLOAT32, 0, 6, comm, NULL)); /* a message of nothing */
  MUST(mep_recv(NULL, 0, MEP_FLOAT32, 0, 6, comm, &message, NULL));
  assert_true(message.tag == 6 && message.bytes == 0);
}

static void groups(void** state) {
  (void)state;
  char* const sent = calloc(2, kLarge);
  char* const got = sent + kLarge;
  float sum = 3;
  mep_message_t message;
  assert_non_null(sent);
  mep_message_defaults(&message);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_group_end());
  memset(sent, 7, kLarge);
  MUST(mep_group_begin());
  MUST(mep_group_begin());
  MUST(mep_send(sent, kLarge, MEP_INT8, 0, 1, comm, NULL)); /* alone it would wait for ever */
  MUST(mep_group_end());
  MUST(mep_allreduce(&sum, &sum, 1, MEP_FLOAT32, MEP_SUM, comm, NULL));
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_send(sent, 1, MEP_INT8, 1, 1, comm, NULL));
  MUST(mep_recv(got, kLarge, MEP_INT8, 0, 1, comm, &message, NULL));
  MUST(mep_group_end());
  assert_memory_equal(sent, got, kLarge);
  assert_true(sum == 3 && message.bytes == kLarge);
  EXPECT(MEP_ERR_INVALID_ARGUMENT, mep_group_end());
  MUST(mep_group_begin()); /* of nothing */
  MUST(mep_group_end());

  /* The first error in the order of the calls; the others end too. */
  int32_t number = 0;
  send_number(4, 4);
  MUST(mep_group_begin());
  MUST(mep_recv(&number, 1, MEP_INT32, 0, 4, comm, NULL, NULL));
  MUST(mep_recv(NULL, 0, MEP_FLOAT32, 0, 4, comm, NULL, NULL));
  MUST(mep_barrier(comm, NULL));
  EXPECT(MEP_ERR_MISMATCH, mep_group_end());
  assert_true(receive_number(4) == 4);
  free(sent);
}

static void* end_inside_a_group(void* got) {
  MUST(mep_group_begin());
  MUST(mep_recv(got, 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL));
  send_number(9, 1);
  return NULL;
}

/* Its thread's end is the group's: the communicator can be destroyed afterwards, as tear_down does. */
static void a_thread_ends_inside_a_group(void** state) {
  (void)state;
  pthread_t thread;
  float got = 0;
  assert_int_equal(pthread_create(&thread, NULL, end_inside_a_group, &got), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_true(got == 9);
}

/* A child made inside a group is in none, and a world of its own works. */
static void a_fork_inside_a_group(void** state) {
  (void)state;
  float got = 0;
  int status = -1;
  MUST(mep_group_begin());
  MUST(mep_recv(&got, 1, MEP_FLOAT32, 0, 1, comm, NULL, NULL));
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    float sum = 2;
    mep_comm_t own = NULL;
    int wrong = mep_group_end() != MEP_ERR_INVALID_ARGUMENT;
    wrong |= mep_comm_init_all(1, NULL, &own) != MEP_SUCCESS ? 2 : 0;
    wrong |= mep_allreduce(&sum, &sum, 1, MEP_FLOAT32, MEP_SUM, own, NULL) != MEP_SUCCESS ? 4 : 0;
    wrong |= mep_comm_destroy(own) != MEP_SUCCESS ? 8 : 0;
    _exit(wrong);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  MUST(mep_send(&got, 0, MEP_FLOAT32, 0, 1, comm, NULL));
  EXPECT(MEP_SUCCESS, mep_group_end());
}

/* A message belongs to its communicator, and mep_comm_last_op knows of none. */
static void a_comm_of_its_own(void** state) {
  (void)state;
  mep_comm_t own = NULL;
  mep_op_info_t before, after;
  int32_t found = -1;
  float value = 8;
  MUST(mep_comm_dup(comm, &own));
  mep_op_info_defaults(&before);
  mep_op_info_defaults(&after);
  MUST(mep_barrier(comm, NULL));
  MUST(mep_comm_last_op(comm, &before));
  send_number(1, 1);
  MUST(mep_iprobe(MEP_ANY_SOURCE, MEP_ANY_TAG, own, &found, NULL));
  assert_int_equal(found, 0);
  MUST(mep_send(&value, 1, MEP_FLOAT32, 0, 1, own, NULL));
  assert_true(receive_number(1) == 1);
  value = 0;
  MUST(mep_recv(&value, 1, MEP_FLOAT32, 0, 1, own, NULL, NULL));
  assert_true(value == 8);
  MUST(mep_comm_last_op(comm, &after));
  assert_int_equal(before.seq, after.seq);
  MUST(mep_comm_destroy(own));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sends),
      cmocka_unit_test(receives),
      cmocka_unit_test(both_at_one_time),
      cmocka_unit_test(requests),
      cmocka_unit_test(refused_lists_and_bitmaps),
      cmocka_unit_test(time_is_over),
      cmocka_unit_test(what_does_not_fit),
      cmocka_unit_test(groups),
      cmocka_unit_test(a_thread_ends_inside_a_group),
      cmocka_unit_test(a_fork_inside_a_group),
      cmocka_unit_test(a_comm_of_its_own),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
