//! What becomes of contexts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Contexts, Phase};
use crate::cupti::sys::CUcontext;

fn context(at: usize) -> CUcontext {
    CUcontext(at as *mut _)
}

fn on(contexts: &Contexts) -> Vec<usize> {
    let mut list = Vec::new();
    contexts.on(&mut list);
    list.iter().map(|(context, _)| context.0.addr()).collect()
}

#[test]
fn a_context_is_set_up_once_and_forgotten_when_it_goes() {
    let contexts = Contexts::new(|| ());
    contexts.created(context(8));
    contexts.launched(context(8), 1);
    assert!(contexts.take(context(8)));
    assert!(!contexts.take(context(8)));
    assert!(contexts.to_set_up(true).is_none());
    assert!(on(&contexts).is_empty());
    contexts.settle(context(8), Phase::On, true);
    assert_eq!(on(&contexts), [8]);
    assert_eq!(contexts.destroyed(context(8)), Some(Phase::On));
    assert_eq!(contexts.destroyed(context(8)), None);
    assert!(on(&contexts).is_empty());
}

#[test]
fn one_that_goes_is_waited_for() {
    let contexts = Contexts::new(|| ());
    contexts.created(context(8));
    contexts.settle(context(8), Phase::On, true);
    let mut list = Vec::new();
    contexts.on(&mut list);
    assert!(contexts.use_it(list[0].0));
    assert_eq!(contexts.destroyed(context(8)), Some(Phase::On));
    assert!(contexts.is_used(context(8)));
    contexts.unused();
    assert!(!contexts.is_used(context(8)));
    assert!(!contexts.use_it(list[0].0), "it is gone");
    assert!(!contexts.is_used(context(8)));
}

#[test]
fn after_a_subscription_only_a_launch_confirms() {
    let contexts = Contexts::new(|| ());
    contexts.launched(context(16), 2);
    contexts.launched(context(8), 1);
    assert_eq!(contexts.to_set_up(true), Some(context(16)));
    contexts.settle(context(16), Phase::On, true);
    contexts.doubt_all();
    assert!(on(&contexts).is_empty());
    // It may exist still.
    contexts.launched(context(8), 1);
    assert_eq!(contexts.to_set_up(true), None);
    contexts.launched(context(16), 2);
    let mut list = Vec::new();
    for stale in [true, false] {
        contexts.on(&mut list);
        assert_eq!(list, [(context(16), stale)]);
    }
    // It is gone, and another is at its address.
    contexts.launched(context(16), 3);
    assert!(on(&contexts).is_empty());
    assert_eq!(contexts.to_set_up(true), Some(context(8)));
}

#[test]
fn one_at_a_time_is_sampled() {
    let contexts = Contexts::new(|| ());
    for at in [8, 16, 24] {
        contexts.created(context(at));
    }
    assert!(contexts.take(context(8)));
    assert!(!contexts.take(context(16)) && contexts.to_set_up(true).is_none());
    contexts.settle(context(8), Phase::On, true);
    assert!(!contexts.take(context(16)) && contexts.to_set_up(true).is_none());
    assert!(!contexts.is_any_left_out(), "the others launch nothing");
    contexts.launched(context(24), 3);
    assert!(contexts.is_any_left_out());
    // Its end takes a while.
    assert_eq!(contexts.destroyed(context(8)), Some(Phase::On));
    contexts.forget(context(8));
    assert!(contexts.to_set_up(true).is_none());
    contexts.release(context(8));
    assert_eq!(
        contexts.to_set_up(true),
        Some(context(24)),
        "the one that launches"
    );
    assert!(!contexts.is_any_left_out());
    // The end of another one changes nothing.
    contexts.destroyed(context(16));
    contexts.release(context(16));
    contexts.created(context(32));
    assert!(!contexts.take(context(32)));
    // Nor does a refusal, until CUPTI has let it go.
    contexts.settle(context(24), Phase::Refused, true);
    assert!(contexts.to_set_up(true).is_none());
    contexts.release(context(24));
    assert!(contexts.take(context(32)));
    // One that CUPTI did not begin with, nor is there any more.
    contexts.forget(context(32));
    contexts.created(context(40));
    assert!(!contexts.take(context(40)));
    assert!(!contexts.settle(context(32), Phase::Refused, false));
    assert!(contexts.take(context(40)));
    // One that goes while CUPTI begins with it, which nobody ends then.
    contexts.forget(context(40));
    assert!(!contexts.settle(context(40), Phase::On, true));
    contexts.created(context(48));
    assert!(!contexts.take(context(48)));
    contexts.created(context(40));
    assert!(contexts.take(context(48)), "another one is at its address");
}

/// One whose GPU another process samples does not keep the others from theirs.
#[test]
fn all_have_their_turn() {
    let contexts = Contexts::new(|| ());
    for at in [8, 16, 24] {
        contexts.created(context(at));
    }
    let turns = [(); 4].map(|()| {
        let context = contexts.to_set_up(true).unwrap();
        assert!(contexts.settle(context, Phase::Found, false));
        context.0.addr()
    });
    assert_eq!(turns, [8, 16, 24, 8]);
    // Those that launch come first.
    contexts.launched(context(16), 2);
    assert_eq!(contexts.to_set_up(true), Some(context(16)));
}

/// What is refused while a context ends is not the end of it.
#[test]
fn a_refusal_lets_nothing_go() {
    let contexts = Contexts::new(|| ());
    for at in [8, 16] {
        contexts.created(context(at));
    }
    assert!(contexts.take(context(8)) && contexts.settle(context(8), Phase::On, true));
    contexts.destroyed(context(8));
    contexts.forget(context(8));
    contexts.refuse(context(8));
    assert!(!contexts.take(context(16)));
    contexts.release(context(8));
    assert!(contexts.take(context(16)) && contexts.settle(context(16), Phase::On, true));
    contexts.refuse(context(16));
    assert_eq!(contexts.destroyed(context(16)), Some(Phase::Refused));
}

/// Each end is told once, however it comes.
#[test]
fn ends_are_told() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    let contexts = Contexts::new(|| {
        ENDS.fetch_add(1, Ordering::Relaxed);
    });
    let begin = |ended: usize| {
        assert_eq!(ENDS.load(Ordering::Relaxed), ended);
        contexts.created(context(8));
        assert!(contexts.take(context(8)));
    };
    begin(0);
    contexts.settle(context(8), Phase::Found, false);
    begin(1);
    contexts.settle(context(8), Phase::On, true);
    contexts.release(context(16));
    contexts.release(context(8));
    contexts.release(context(8));
    begin(2);
    // Another one is at its address.
    contexts.created(context(8));
    begin(3);
    contexts.launched(context(8), 1);
    contexts.launched(context(8), 2);
    begin(4);
    contexts.forget_all();
    contexts.forget_all();
    begin(5);
}

#[test]
fn another_context_at_the_same_address() {
    let contexts = Contexts::new(|| ());
    contexts.created(context(8));
    assert!(contexts.take(context(8)));
    contexts.settle(context(8), Phase::On, true);
    contexts.created(context(8));
    assert!(contexts.take(context(8)), "the first one is gone");
    contexts.settle(context(8), Phase::On, true);
    contexts.forget_all();
    contexts.created(context(16));
    assert!(contexts.take(context(16)));
}

#[test]
fn one_that_launches_is_waited_for() {
    let contexts = Contexts::new(|| ());
    contexts.created(context(8));
    contexts.created(context(16));
    assert_eq!(contexts.to_set_up(false), None);
    contexts.launched(context(16), 2);
    assert_eq!(contexts.to_set_up(false), Some(context(16)));
}
