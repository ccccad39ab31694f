// The cases of oracle_waits_test.cpp.
#pragma once

void a_needless_wait(void**);
void what_came_before_a_wait(void**);
void a_wait_for_a_joiner_that_was_not_there(void**);
void a_wait_for_a_member(void**);
void a_wait_after_an_event(void**);
void an_end_that_is_seen_late(void**);
void a_call_that_did_not_wait(void**);
