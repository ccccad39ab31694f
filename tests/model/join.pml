/* A joiner joins (mep_recover_ranks): slot J of N held an incarnation that was lost and excluded; the
 * members call the collective, the lowest proposes the view with the joiner, its old view's quorum
 * commits it. Members and the joiner may crash or be falsely suspected at every step, and what the
 * old incarnation left in flight arrives at any time: a statement that it is dead, and a signal word.
 *
 * One step is what the state machine does on one event, and a peer's row arrives whole, as in
 * view_change.pml; the world is idle, so N* is left out and `next` stands for the sequence.
 *
 * Asserted:
 *   A1 one view (members and next) per epoch while anyone lives who acknowledged or installed it
 *   A2 nothing of the old incarnation is consumed: no operation completes on its word
 *   A3 the joiner and the members go on at the same `next`, which no member has used
 *   A4 `dead` is never set for a living process; the joiner lives in a slot with a dead past
 * With LIVENESS, when only a further failure can happen:
 *   L1 every living member's call has returned and its operation is done, or it can have no quorum
 *   L2 without false suspicion all living members are in one view of exactly the living, and the
 *      joiner, if it lives, is in it
 *
 * Wrong variants: DEAD_BY_SLOT (a statement counts for whoever is in the slot now), NO_TAG (any word of
 * the slot counts), START_AT_ZERO, COUNT_JOINER (it counts for the quorum),
 * WAIT_JOINER (its acknowledgement is waited for, though it may be dead),
 * RULE_C_WITHOUT_JOINER (a joiner lives in a view whose other members are dead, the excluded
 * rest goes on without knowing), NO_ADOPT.
 * Reached code: REACH_JOINED, REACH_FAILED (the call ends without the joiner), REACH_ADOPT.
 */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES (N - 1)
#endif
#ifndef FALSE_SUSPICIONS
#define FALSE_SUSPICIONS 0
#endif
#define EPOCHS (N + 1)

#define J (N - 1)
#define ALL ((1 << N) - 1)
#define OLD (ALL & ~BIT(J))
#define BIT(i) (1 << (i))
#define IN(i, set) (((set) >> (i)) & 1)
#define COUNT(s) (((s) & 1) + (((s) >> 1) & 1) + (((s) >> 2) & 1) + (((s) >> 3) & 1))
#define LOWEST(s) (((s) & 1) -> 0 : (((s) & 2) -> 1 : (((s) & 4) -> 2 : (((s) & 8) -> 3 : 7))))

typedef Row {
  unsigned epoch : 3;
  unsigned recover : 1; /* has called the collective in this epoch */
  unsigned next : 3;    /* of the view; where the next operation goes on */
  unsigned ballot : 3;
  unsigned leader : 3;
  unsigned members : N; /* none: a joiner that is not in */
  unsigned suspects : N;
  unsigned dead : N;
  unsigned next_members : N;
  unsigned next_next : 3
};

/* The word of slot J at this rank, and what the rank consumed. */
typedef Memory {
  unsigned old_statement : 1; /* has arrived */
  unsigned old_word : 1;      /* lies there */
  unsigned old_written : 1;   /* has been written once */
  unsigned settled : 1; /* the joiner has been in a view of this rank and is out again */
  unsigned done : 1
};

typedef View {
  unsigned members : N;
  unsigned next : 3;
  unsigned bound : N;
};

Row table[N * N];
Memory memory[N];
View agreed[EPOCHS + 1];
unsigned alive : N = ALL;
byte crashes = CRASHES;
byte false_suspicions = FALSE_SUSPICIONS;
byte me, peer;

#define OWN(j) table[(j) * N + (j)]
#define SEEN(j, i) table[(j) * N + (i)]
#define SAME_ROW(a, b)                                                                       \
  (a.epoch == b.epoch && a.recover == b.recover && a.next == b.next && a.ballot == b.ballot && \
   a.leader == b.leader && a.members == b.members && a.suspects == b.suspects &&             \
   a.dead == b.dead && a.next_members == b.next_members && a.next_next == b.next_next)

#ifdef COUNT_JOINER
#define VOTES(j, set) (set)
#else
#define VOTES(j, set) ((set) & OWN(j).members)
#endif
#define QUORUM(j, set)                                                                       \
  (2 * COUNT(VOTES(j, set)) > COUNT(OWN(j).members) ||                                       \
   (2 * COUNT(VOTES(j, set)) == COUNT(OWN(j).members) && IN(LOWEST(OWN(j).members), set)) || \
   ((OWN(j).members | CANDIDATE(j)) & ~OWN(j).dead & ~(set)) == 0)
/* Rule (c) counts a joiner too: it may have entered a view of members that are all dead by now. */
#ifdef RULE_C_WITHOUT_JOINER
#define CANDIDATE(j) 0
#else
#define CANDIDATE(j) (memory[j].settled -> 0 : BIT(J))
#endif

hidden byte r, live, lead, good, again, need, top, top_leader, value_members, value_next, all_call;

inline forget_row(j, i) {
  SEEN(j, i).epoch = 0;
  SEEN(j, i).recover = 0;
  SEEN(j, i).next = 0;
  SEEN(j, i).ballot = 0;
  SEEN(j, i).leader = 0;
  SEEN(j, i).members = 0;
  SEEN(j, i).suspects = 0;
  SEEN(j, i).dead = 0;
  SEEN(j, i).next_members = 0;
  SEEN(j, i).next_next = 0
}

inline receive_row(j, i) {
  SEEN(j, i).epoch = OWN(i).epoch;
  SEEN(j, i).recover = OWN(i).recover;
  SEEN(j, i).next = OWN(i).next;
  SEEN(j, i).ballot = OWN(i).ballot;
  SEEN(j, i).leader = OWN(i).leader;
  SEEN(j, i).members = OWN(i).members;
  SEEN(j, i).suspects = OWN(i).suspects;
  SEEN(j, i).dead = OWN(i).dead;
  SEEN(j, i).next_members = OWN(i).next_members;
  SEEN(j, i).next_next = OWN(i).next_next
}

inline forget_suspects(j) {
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, OWN(j).suspects) -> forget_row(j, r)
     :: else
     fi;
     r++
  :: else -> break
  od
}

inline install(j, at, acknowledged, new_members, new_next) {
  if
  :: agreed[at].bound & alive ->
     assert(agreed[at].members == new_members); /* A1 */
     assert(agreed[at].next == new_next)        /* A1, A3 */
  :: else -> agreed[at].bound = 0
  fi;
  assert(j == J || new_next > OWN(j).next); /* A3 */
#ifdef REACH_JOINED
  assert(!IN(J, new_members));
#endif
#ifdef REACH_FAILED
  assert(!OWN(j).recover || IN(J, new_members));
#endif
  agreed[at].members = new_members;
  agreed[at].next = new_next;
  agreed[at].bound = agreed[at].bound | ((acknowledged) & OWN(j).members) | BIT(j);
  OWN(j).epoch = at;
#ifdef START_AT_ZERO
  OWN(j).next = ((OWN(j).members == 0) -> 0 : new_next);
#else
  OWN(j).next = new_next;
#endif
  if
  :: IN(J, OWN(j).members) || OWN(j).members == 0 ->
     OWN(j).suspects = OWN(j).suspects | (ALL & ~(new_members))
  :: else -> OWN(j).suspects = OWN(j).suspects | (OLD & ~(new_members)) /* J may still come */
  fi;
  if
  :: IN(J, OWN(j).members) && !IN(J, new_members) -> memory[j].settled = 1
  :: else
  fi;
  OWN(j).members = new_members;
  OWN(j).dead = OWN(j).dead & (OWN(j).members | BIT(J));
  OWN(j).recover = 0;
  OWN(j).ballot = 0;
  OWN(j).leader = 0;
  OWN(j).next_members = 0;
  OWN(j).next_next = 0;
  memory[j].done = 0;
  forget_suspects(j);
  again = 1
}

/* Accepting acknowledges; before, the words of lost and coming slots are zeroed. */
inline accept(j, number, proposer, set, sequence) {
  memory[j].old_word = 0;
  OWN(j).ballot = number;
  OWN(j).leader = proposer;
  OWN(j).next_members = set;
  OWN(j).next_next = sequence
}

inline propose(j) {
  good = (OWN(j).epoch < EPOCHS);
  all_call = OWN(j).recover;
  top = 0;
  top_leader = 0;
  value_next = OWN(j).next;
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, live) ->
        if
        :: SEEN(j, r).epoch != OWN(j).epoch || SEEN(j, r).suspects != OWN(j).suspects ||
           (SEEN(j, r).suspects & OWN(j).members) == 0 && !SEEN(j, r).recover -> good = 0
        :: else
        fi;
        all_call = all_call && SEEN(j, r).recover;
        value_next = (SEEN(j, r).next > value_next -> SEEN(j, r).next : value_next)
     :: else
     fi;
     r++
  :: else -> break
  od;
  value_next = value_next + 1;
  value_members = live;
  if
  :: all_call && !IN(J, OWN(j).suspects) -> value_members = live | BIT(J)
  :: else
  fi;
  r = 0;
  do
  :: r < N ->
     if
     :: good && IN(r, live) && SEEN(j, r).ballot &&
        (SEEN(j, r).ballot > top || (SEEN(j, r).ballot == top && SEEN(j, r).leader > top_leader)) ->
        top = SEEN(j, r).ballot;
        top_leader = SEEN(j, r).leader;
#ifndef NO_ADOPT
        value_members = SEEN(j, r).next_members;
        value_next = SEEN(j, r).next_next
#endif
     :: else
     fi;
     r++
  :: else -> break
  od;
  if
  :: good && IN(j, value_members) ->
#ifdef REACH_ADOPT
     assert(top == 0);
#endif
     accept(j, (top + 1), j, value_members, value_next)
  :: else
  fi
}

#define ACKNOWLEDGED(j, i) \
  (!IN(i, OWN(j).suspects) && SEEN(j, i).ballot == OWN(j).ballot && SEEN(j, i).leader == j)

inline commit(j) {
  need = OWN(j).next_members & ~OWN(j).suspects;
#ifdef WAIT_JOINER
  need = (need & OWN(j).members) | (OWN(j).next_members & BIT(J));
#else
  need = need & OWN(j).members;
#endif
  good = QUORUM(j, (need | (ACKNOWLEDGED(j, J) -> BIT(J) : 0)));
  r = 0;
  do
  :: r < N ->
     if
     :: r != j && IN(r, need) && (SEEN(j, r).ballot != OWN(j).ballot || SEEN(j, r).leader != j ||
                      (SEEN(j, r).epoch != OWN(j).epoch && SEEN(j, r).members)) ->
        good = 0
     :: else
     fi;
     r++
  :: else -> break
  od;
  if
  :: good ->
     value_members = OWN(j).next_members;
     value_next = OWN(j).next_next;
     install(j, (OWN(j).epoch + 1), need, value_members, value_next)
  :: else
  fi
}

inline react(j) {
  do
  :: again = 0;
     if
     :: (OWN(j).suspects & OWN(j).members) != 0 || OWN(j).recover ->
        live = OWN(j).members & ~OWN(j).suspects;
        lead = LOWEST(live);
        if
        :: lead == j ->
           if
           :: OWN(j).ballot == 0 || OWN(j).leader != j -> propose(j)
           :: else
           fi;
           if
           :: OWN(j).ballot && OWN(j).leader == j -> commit(j)
           :: else
           fi
        :: lead != j && SEEN(j, lead).epoch == OWN(j).epoch && SEEN(j, lead).leader == lead &&
           SEEN(j, lead).ballot > OWN(j).ballot && IN(j, SEEN(j, lead).next_members) ->
           accept(j, SEEN(j, lead).ballot, lead, SEEN(j, lead).next_members,
                  SEEN(j, lead).next_next)
        :: else
        fi
     :: else
     fi;
     if
     :: again
     :: else -> break
     fi
  od
}

/* The joiner has no view of its own: it enters with the view. Its acknowledgement is a promise, for it
 * takes over the leader's suspicions; it counts in rule (c) only and nothing else waits for it. */
inline joiner_learns(j, i) {
  if
  :: SEEN(j, i).members && IN(j, SEEN(j, i).members) && !IN(j, SEEN(j, i).suspects) ->
     OWN(j).suspects = SEEN(j, i).suspects;
     OWN(j).dead = SEEN(j, i).dead & SEEN(j, i).members;
     install(j, SEEN(j, i).epoch, 0, SEEN(j, i).members, SEEN(j, i).next)
  :: !SEEN(j, i).members || !IN(j, SEEN(j, i).members) ->
     if
     :: SEEN(j, i).leader == i && !IN(j, SEEN(j, i).suspects) &&
        (SEEN(j, i).ballot > OWN(j).ballot ||
         (SEEN(j, i).ballot && SEEN(j, i).ballot == OWN(j).ballot && i > OWN(j).leader)) ->
        OWN(j).suspects = OWN(j).suspects | SEEN(j, i).suspects;
        accept(j, SEEN(j, i).ballot, i, SEEN(j, i).next_members, SEEN(j, i).next_next);
        forget_suspects(j)
     :: else
     fi
  :: else
  fi
}

inline member_learns(j, i) {
  OWN(j).dead = OWN(j).dead | (SEEN(j, i).dead & (OWN(j).members | BIT(J)));
  OWN(j).suspects = OWN(j).suspects |
                    ((SEEN(j, i).suspects | SEEN(j, i).dead) & (OWN(j).members | BIT(J)) & ~BIT(j));
  if
  :: IN(j, SEEN(j, i).suspects) || SEEN(j, i).members &&
     (SEEN(j, i).epoch > OWN(j).epoch + 1 ||
      (SEEN(j, i).epoch == OWN(j).epoch + 1 && !IN(j, SEEN(j, i).members))) ->
     OWN(j).suspects = OWN(j).suspects | BIT(i)
  :: else
  fi;
  assert((OWN(j).dead & alive) == 0); /* A4 */
  if
  :: !IN(i, OWN(j).suspects) && SEEN(j, i).members && SEEN(j, i).epoch == OWN(j).epoch + 1 ->
     install(j, (OWN(j).epoch + 1), 0, SEEN(j, i).members, SEEN(j, i).next)
  :: else
  fi;
  forget_suspects(j)
}

inline crash(k) {
  alive = alive & ~BIT(k);
  crashes = crashes - 1;
  r = 0;
  do
  :: r < N -> forget_row(k, r); r++
  :: else -> break
  od;
  memory[k].old_statement = 0;
  memory[k].old_word = 0;
  memory[k].old_written = 0;
  memory[k].settled = 0;
  memory[k].done = 0
}

#define MEMBER(j) (IN(j, alive) && OWN(j).members != 0)
#define CAN_PUSH(i, j) \
  (IN(i, alive) && IN(j, alive) && !IN(i, OWN(j).suspects) && !SAME_ROW(SEEN(j, i), OWN(i)))
#define CAN_CONFIRM(j, k) \
  (MEMBER(j) && !IN(k, alive) && IN(k, (OWN(j).members | BIT(J))) && !IN(k, OWN(j).dead))
#define CAN_SUSPECT(j, k)            \
  (false_suspicions && MEMBER(j) && IN(k, (OWN(j).members | BIT(J))) && !IN(k, OWN(j).suspects))
/* The collective is called while the joiner is ready, or because others have called it. */
#define CALLED(j, i) (SEEN(j, i).recover && SEEN(j, i).epoch == OWN(j).epoch)
#if N == 3
#define ANY_CALLED(j) (CALLED(j, 0) || CALLED(j, 1))
#else
#define ANY_CALLED(j) (CALLED(j, 0) || CALLED(j, 1) || CALLED(j, 2))
#endif
#define CAN_CALL(j)                                                              \
  (MEMBER(j) && !IN(J, OWN(j).members) && !OWN(j).recover && OWN(j).epoch < EPOCHS && \
   (!IN(J, OWN(j).suspects) || ANY_CALLED(j)))
/* The operation of a view with the joiner: all have posted, so that the word of J decides. */
#define VALID_WORD(j) (IN(J, alive) && OWN(J).epoch == OWN(j).epoch && OWN(J).members)
#ifdef NO_TAG
#define CAN_COMPLETE(j) (MEMBER(j) && IN(J, OWN(j).members) && !memory[j].done && \
   (OWN(j).suspects & OWN(j).members) == 0 && (VALID_WORD(j) || memory[j].old_word))
#else
#define CAN_COMPLETE(j) (MEMBER(j) && IN(J, OWN(j).members) && !memory[j].done && \
   (OWN(j).suspects & OWN(j).members) == 0 && VALID_WORD(j))
#endif

#define PUSH(i, j) :: atomic { CAN_PUSH(i, j) -> me = j; peer = i; goto pushed }
#define CONFIRM(j, k) :: atomic { CAN_CONFIRM(j, k) -> me = j; peer = k; goto confirmed }
#define SUSPECT(j, k) :: atomic { CAN_SUSPECT(j, k) -> me = j; peer = k; goto suspected }
#define CALL(j) :: atomic { j != J && CAN_CALL(j) -> me = j; goto called }
#define COMPLETE(j) :: d_step { CAN_COMPLETE(j) -> complete(j) }
#define OLD_STATEMENT(j) \
  :: d_step { j != J && IN(j, alive) && !memory[j].old_statement -> hear_old_statement(j) }
#define OLD_WRITE(j)                                                                 \
  :: d_step { j != J && IN(j, alive) && !memory[j].old_written ->                    \
       memory[j].old_written = 1; memory[j].old_word = 1 }
#define CRASH(k) :: d_step { crashes && IN(k, alive) -> crash(k) }

#if N == 3
#define EACH(F) F(0) F(1) F(2)
#define PAIRS(F) F(0, 1) F(0, 2) F(1, 0) F(1, 2) F(2, 0) F(2, 1)
#else
#define EACH(F) F(0) F(1) F(2) F(3)
#define PAIRS(F) \
  F(0, 1) F(0, 2) F(0, 3) F(1, 0) F(1, 2) F(1, 3) F(2, 0) F(2, 1) F(2, 3) F(3, 0) F(3, 1) F(3, 2)
#endif

inline complete(j) {
  memory[j].done = 1;
  assert(VALID_WORD(j));                       /* A2 */
  assert(OWN(j).next == agreed[OWN(j).epoch].next); /* A3 */
  assert(j == J || OWN(J).next == OWN(j).next) /* A3 */
}

/* "Slot J, first incarnation: dead", from a member that saw its exit; it comes late. */
inline hear_old_statement(j) {
  memory[j].old_statement = 1;
#ifdef DEAD_BY_SLOT
  OWN(j).dead = OWN(j).dead | BIT(J);
  OWN(j).suspects = OWN(j).suspects | BIT(J);
  assert((OWN(j).dead & alive) == 0); /* A4 */
#endif
  r = 0
}

#define OPEN_VIEW(j) (!OWN(j).recover && (OWN(j).members & OWN(j).suspects) == 0)
#define SETTLED(j)                                                                      \
  (!MEMBER(j) || (OPEN_VIEW(j) && (memory[j].done || !IN(J, OWN(j).members))) ||        \
   !QUORUM(j, ((OWN(j).members | BIT(J)) & ~OWN(j).suspects)))
#define EXACT(j) (!MEMBER(j) || OWN(j).members == alive)

inline check_quiet() {
  r = 0;
  do
  :: r < N ->
     assert(SETTLED(r)); /* L1 */
#if FALSE_SUSPICIONS == 0
     assert(EXACT(r) || alive == BIT(J)); /* L2 */
#endif
     r++
  :: else -> break
  od;
  need = 0
}

proctype world() {
loop:
  do
  PAIRS(PUSH)
  PAIRS(CONFIRM)
  EACH(CALL)
  EACH(COMPLETE)
  EACH(OLD_STATEMENT)
  EACH(OLD_WRITE)
#ifdef LIVENESS
  :: atomic { else -> check_quiet() };
progress_quiet:
     true
#endif
  od;
  atomic {
    true; /* a jump into an atomic sequence goes on in it */
pushed:
    true;
    d_step {
      receive_row(me, peer);
      if
      :: OWN(me).members == 0 -> joiner_learns(me, peer)
      :: else -> member_learns(me, peer)
      fi;
      if
      :: OWN(me).members != 0 -> react(me)
      :: else
      fi;
      me = 0;
      peer = 0
    };
    goto loop
  };
  atomic {
    true;
confirmed:
    true;
    d_step {
      OWN(me).dead = OWN(me).dead | BIT(peer);
      OWN(me).suspects = OWN(me).suspects | BIT(peer);
      forget_suspects(me);
      react(me);
      me = 0;
      peer = 0
    };
    goto loop
  };
  atomic {
    true;
called:
    true;
    d_step { OWN(me).recover = 1; react(me); me = 0 };
    goto loop
  }
}

proctype adversary() {
end_loop:
  do
  EACH(CRASH)
#if FALSE_SUSPICIONS > 0
  PAIRS(SUSPECT)
#endif
  od;
#if FALSE_SUSPICIONS > 0
  atomic {
    true;
suspected:
    true;
    d_step {
      false_suspicions = false_suspicions - 1;
      OWN(me).suspects = OWN(me).suspects | BIT(peer);
      forget_suspects(me);
      react(me);
      me = 0;
      peer = 0
    };
    goto end_loop
  }
#endif
}

init {
  d_step {
    do
    :: me < J ->
       peer = 0;
       do
       :: peer < J -> SEEN(me, peer).members = OLD; SEEN(me, peer).next = 1; peer++
       :: else -> break
       od;
       me++
    :: else -> break
    od;
    me = 0;
    peer = 0;
    agreed[0].members = OLD
  };
  atomic { run world(); run adversary() }
}
