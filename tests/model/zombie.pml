/* Zombie writes: a stopped process goes on writing after the others have excluded it.
 *
 * Rank T owns a window that P and Z write. Z may stop between any two of its steps, between the
 * look at the abort word and the store too, and wake at any time; or it may crash, which T and P
 * then know. In the first epoch P and Z contribute to operations 0, 1, ... of T, double-buffered
 * (DEPTH): nobody enters an operation before it has completed the one before, for which all must
 * have entered. Then T and P freeze, exclude Z, fence, acknowledge, commit, and P writes in the
 * second epoch to the very cells that Z wrote in the first (places are computed from the view, so
 * they move). P, if it was behind N*, is given the contributions that T has retained.
 *
 * The bytes of a cell are (epoch, writer, operation); a contribution is two cells, so that a stop
 * in the middle of a copy is there, and then a signal word, a tag. Asserted: Z1 what T uses in
 * the second epoch is P's, both halves; Z2 what the catch-up gives is Z's contribution to N* itself;
 * and T gets P's signal (no stuck end state).
 *
 * Wrong variants: REUSE_WINDOW (not replaced when a rank that is not confirmed dead is excluded),
 * STOPPED_IS_DEAD (the same by taking a stopped process for a dead one), SINGLE_BUFFER (DEPTH 1:
 * Z writes over what is retained), REPLACE_AFTER_ACK, ZERO_AFTER_ACK (P's new signal is wiped),
 * NO_ZERO_NO_EPOCH (a tag without the epoch in a word that is not zeroed), HAND_TO_ANYONE (the
 * new window is given to an excluded rank that asks). REACH_CATCH_UP: the catch-up is reached.
 */
#ifdef SINGLE_BUFFER
#define DEPTH 1
#else
#define DEPTH 2
#endif
#define OPS 3 /* operations of the first epoch */

#define P 1
#define Z 2
#define CONTENT(epoch, writer, op) ((epoch) * 16 + (writer) * 4 + (op) + 64)

/* A signal's tag: the epoch and the use count of the word; never zero. */
#ifdef NO_ZERO_NO_EPOCH
#define TAG(epoch, op) (128 + (op) / DEPTH)
#else
#define TAG(epoch, op) (128 + (epoch) * 16 + (op) / DEPTH)
#endif

typedef Window {
  byte half[4];     /* two cells a slot: those of Z in the first epoch, P's in the second */
  byte z_signal[2]; /* a word a slot */
  byte p_signal[2]
};

Window window[2]; /* by generation; both stay mapped where they were mapped */
byte generation;   /* that T uses */
byte p_generation; /* that P writes to */
byte z_generation; /* that Z has mapped */
byte consumed;     /* operations that T has completed */
byte p_done;       /* and P */
byte p_entered, z_entered;
bool z_dead, frozen, acknowledged, committed, caught_up;

#define SLOT(op) ((op) % DEPTH)

/* Z knows of nothing but its own abort word, which nobody can set while it is stopped. */
proctype zombie() {
  byte op = 0;
end_stop:
  do
  :: op < OPS && (op == 0 || (p_entered >= op && consumed + 1 >= op)) ->
     z_entered = op + 1;
     /* looked at the abort word; may stop here and before every store */
end_a:
     d_step { !z_dead -> window[z_generation].half[2 * SLOT(op)] = CONTENT(0, Z, op) };
end_b:
     d_step { !z_dead -> window[z_generation].half[2 * SLOT(op) + 1] = CONTENT(0, Z, op) };
end_c:
     d_step { !z_dead -> window[z_generation].z_signal[SLOT(op)] = TAG(0, op) };
     op++
#ifdef HAND_TO_ANYONE
  :: committed && z_generation != generation -> z_generation = generation
#endif
  od
}

proctype writer() {
  do
  :: !frozen && p_entered == p_done && p_entered < OPS ->
     d_step { window[0].p_signal[SLOT(p_entered)] = TAG(0, p_entered); p_entered++ }
  :: !frozen && p_entered > p_done && z_entered > p_done && consumed >= p_done -> p_done++
  :: acknowledged -> break
  od;
  /* The catch-up, if P is behind N*: Z's contribution comes from where T retains it. */
  if
  :: consumed > p_done ->
#ifdef REACH_CATCH_UP
     assert(false);
#endif
     assert(window[0].half[2 * SLOT(consumed - 1)] == CONTENT(0, Z, consumed - 1));     /* Z2 */
     assert(window[0].half[2 * SLOT(consumed - 1) + 1] == CONTENT(0, Z, consumed - 1)) /* Z2 */
  :: else
  fi;
  d_step { committed = true; p_generation = generation };
  /* The second epoch: operation OPS, at the place where Z's was. */
  window[p_generation].half[0] = CONTENT(1, P, OPS);
  window[p_generation].half[1] = CONTENT(1, P, OPS);
  window[p_generation].p_signal[0] = TAG(1, 0)
}

inline replace_window() {
  d_step {
    if
#ifdef REUSE_WINDOW
    :: true
#else
    :: !z_gone -> generation = 1
    :: z_gone
#endif
    fi
  }
}

inline zero_signals() {
#ifndef NO_ZERO_NO_EPOCH
  d_step {
    window[generation].p_signal[0] = 0;
    window[generation].p_signal[1] = 0;
    window[generation].z_signal[0] = 0;
    window[generation].z_signal[1] = 0
  }
#else
  true
#endif
}

proctype target() {
  bool z_gone = false;
  do
  :: consumed < OPS && window[0].p_signal[SLOT(consumed)] == TAG(0, consumed) &&
     window[0].z_signal[SLOT(consumed)] == TAG(0, consumed) ->
     d_step {
       assert(window[0].half[2 * SLOT(consumed)] == CONTENT(0, Z, consumed));
       assert(window[0].half[2 * SLOT(consumed) + 1] == CONTENT(0, Z, consumed));
       consumed++
     }
  :: true -> frozen = true; break /* Z is suspected at any time */
  od;
  if
  :: z_dead -> z_gone = true /* its exit was seen */
#ifdef STOPPED_IS_DEAD
  :: true -> z_gone = true
#endif
  :: true
  fi;
#ifdef REPLACE_AFTER_ACK
  acknowledged = true;
  replace_window();
  zero_signals();
#elif defined(ZERO_AFTER_ACK)
  replace_window();
  acknowledged = true;
  zero_signals();
#else
  replace_window();
  zero_signals();
  acknowledged = true;
#endif
  committed;
  /* The second epoch; a valid signal admits the bytes. */
  window[generation].p_signal[0] == TAG(1, 0);
  assert(window[generation].half[0] == CONTENT(1, P, OPS)); /* Z1 */
  assert(window[generation].half[1] == CONTENT(1, P, OPS)); /* Z1 */
  /* ... and they stay what they are while they are used. */
  assert(window[generation].half[0] == CONTENT(1, P, OPS));
  assert(window[generation].half[1] == CONTENT(1, P, OPS))
}

proctype killer() {
end_k:
  z_dead = true
}

init {
  atomic { run zombie(); run writer(); run target(); run killer() }
}
