//! Policies of a user's own that are `around` and nothing else: they switch nothing off.
use std::{
    future::{Ready, pending, ready},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    FailureKind, KindSet, Outcome, Pipeline, PolicyKind, Reason, Rejected,
    call::{Attempt, CallContext, Failed, Policy, Switch},
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    standard::{Standard, StandardConfig},
    testing::{ManualClock, ScriptedError, ScriptedService},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Passes the attempt on to another policy.
struct Wrapped<P>(P);

impl<P: Policy> Policy for Wrapped<P> {
    async fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.around(inner, cx).await
    }
}

/// Lends the attempt to another policy, and rejects the call itself if that policy did.
struct Lends<P>(P);

impl<P: Policy> Policy for Lends<P> {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.0.around(&mut inner, cx).await {
            Outcome::Rejected => refuse(&mut inner),
            outcome => outcome,
        }
    }
}

/// Lets everything pass, as a policy of its own around the next one.
struct Passes;

impl Policy for Passes {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.attempt(cx).await
    }
}

/// Rejects everything.
struct Refuses;

impl Policy for Refuses {
    async fn around<A: Attempt>(&self, mut inner: A, _: CallContext<'_>) -> Outcome {
        refuse(&mut inner)
    }
}

fn refuse(inner: &mut impl Attempt) -> Outcome {
    inner.refuse(Rejected::new(PolicyKind::Custom("test"), Reason::Custom("closed")))
}

fn world(script: &str) -> (ScriptedService, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    (ScriptedService::new(script, &clock).unwrap(), clock, time)
}

/// A fallback that counts its runs.
fn counted(runs: &AtomicU32) -> impl FnOnce(Failed<'_, u16, ScriptedError>) -> Ready<Result<u16, ScriptedError>> {
    |_| {
        runs.fetch_add(1, SeqCst);
        ready(Ok(7))
    }
}

/// Runs one call with a fallback through the policy as it is, wrapped in each way, and boxed. Returns for each if the call
/// succeeded, and how often its fallback ran.
fn falls_back<P: Policy + Clone + 'static>(
    script: &str,
    policy: impl Fn(&Clock) -> P,
    around: Option<Duration>,
) -> Vec<(bool, u32)> {
    macro_rules! results {
        ($($policy:expr),+) => {
            vec![$({
                let (service, clock, time) = world(script);
                let own = policy(&clock);
                let outer = around.map(|limit| Timeout::builder(limit).clock(&clock).build());
                let pipeline = Pipeline::new().then(outer).then($policy(own)).classify(ScriptedService::classify);
                let runs = AtomicU32::new(0);
                let plain = time.block_on(pipeline.call_or(|| service.call(), counted(&runs))).is_ok();
                let plain = (plain, runs.swap(0, SeqCst));
                let (service, _, time) = world(script);
                let boxed = pipeline.boxed();
                let done = match around {
                    // The time of the first world is over.
                    Some(_) => plain.0,
                    None => time.block_on(boxed.call_or(|| service.call(), counted(&runs))).is_ok(),
                };
                assert!(around.is_some() || (done, runs.load(SeqCst)) == plain, "boxed: {done}, {runs:?}; plain: {plain:?}");
                plain
            }),+]
        };
    }
    results!(|own| own, Wrapped, Lends, |own| Wrapped(Lends(own)), |own| (Passes, own), |own| Arc::new(Wrapped(Some(
        own
    ))))
}

fn fallback(config: FallbackConfig) -> impl Fn(&Clock) -> Fallback {
    move |clock| Fallback::builder(config).clock(clock).build().unwrap()
}

// Guarantee: fallback 2.
/// Regression: behind a policy of the user's own that did not forward `has_fallback`, the rules of the fallback policy did
/// not hold, since the call fell back at its end.
#[test]
fn a_fallback_policy_in_a_wrapper_decides_by_its_own_rules() {
    let only_connect = FallbackConfig::default().fall_back_on(KindSet::of(&[FailureKind::Connect]));
    assert_eq!(falls_back("503", fallback(FallbackConfig::default()), None), [(true, 1); 6]);
    assert_eq!(falls_back("503", fallback(only_connect), None), [(false, 0); 6]);
    assert_eq!(falls_back("ok", fallback(only_connect), None), [(true, 0); 6]);
    // Beneath a hedge no fallback runs, also if a fork that reached the policy is dropped.
    let hedged = |clock: &Clock| {
        let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(clock).build().unwrap();
        (hedge, Fallback::builder(FallbackConfig::default()).clock(clock).build().unwrap())
    };
    assert_eq!(falls_back("503", hedged, None), [(false, 0); 6]);
    // Nor does it run after an outer time-out.
    assert_eq!(falls_back("ok in 1m", fallback(FallbackConfig::default()), Some(MS(5))), [(false, 0); 6]);
    let hedged_limit = Some(MS(5));
    assert_eq!(falls_back("ok in 1m", hedged, hedged_limit), [(false, 0); 6]);
}

// Guarantee: fallback 2.
#[test]
fn a_fallback_in_a_wrapper_runs_at_most_once() {
    let (service, clock, time) = world("503");
    let own = Fallback::builder(FallbackConfig::default().timeout(MS(5))).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(Wrapped(Lends(own))).classify(ScriptedService::classify);
    let runs = AtomicU32::new(0);
    let fails = |_: Failed<'_, _, _>| {
        runs.fetch_add(1, SeqCst);
        service.call()
    };
    assert!(time.block_on(pipeline.call_or(|| service.call(), fails)).unwrap_err().fallback().is_some());
    assert_eq!(runs.swap(0, SeqCst), 1);
    let hangs = |_: Failed<'_, _, _>| {
        runs.fetch_add(1, SeqCst);
        pending()
    };
    assert!(time.block_on(pipeline.call_or(|| service.call(), hangs)).unwrap_err().fallback().is_some());
    assert_eq!(runs.load(SeqCst), 1);
}

// Guarantee: fallback 2.
#[test]
fn a_fallback_policy_decides_also_after_a_rejection_outside_it() {
    let own = Fallback::new(FallbackConfig::default()).unwrap();
    let runs = AtomicU32::new(0);
    let (service, _, time) = world("ok");
    let pipeline = Pipeline::new().then(Refuses).then(own).classify(ScriptedService::classify);
    assert!(time.block_on(pipeline.call_or(|| service.call(), counted(&runs))).unwrap_err().is_rejected());
    assert!(time.block_on(pipeline.boxed().call_or(|| service.call(), counted(&runs))).unwrap_err().is_rejected());
    assert_eq!(runs.load(SeqCst), 0);
    let without = Pipeline::new().then(Wrapped(Refuses)).classify(ScriptedService::classify);
    assert!(time.block_on(without.call_or_marked(|| service.call(), counted(&runs))).unwrap().is_degraded());
    assert_eq!(runs.load(SeqCst), 1);
}

// Guarantee: fallback 5.
/// Switches a fallback off before each attempt.
struct TurnsOff(Arc<Switch<Fallback>>);

impl Policy for TurnsOff {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.set(false);
        inner.attempt(cx).await
    }
}

/// Regression: a fallback policy that was switched on during a call kept the call's fallback without running it, and one
/// that was switched off lost its rules.
#[test]
fn a_switch_that_turns_during_a_call_neither_loses_nor_repeats_the_fallback() {
    let (_, clock, time) = world("503");
    let only_connect = FallbackConfig::default().fall_back_on(KindSet::of(&[FailureKind::Connect]));
    for (on_before, on_after, runs_expected) in [(false, true, 1), (true, false, 0), (true, true, 0), (false, false, 1)]
    {
        let (service, runs) = (ScriptedService::new("503", &clock).unwrap(), AtomicU32::new(0));
        let switch = Arc::new(Switch::new(Fallback::new(only_connect).unwrap()));
        switch.set(on_before);
        let pipeline = Pipeline::new().then(switch.clone()).classify(ScriptedService::classify);
        let turn = || {
            switch.set(on_after);
            service.call()
        };
        let done = time.block_on(pipeline.call_or(turn, counted(&runs))).is_ok();
        assert_eq!((done, runs.load(SeqCst)), (runs_expected == 1, runs_expected), "{on_before} {on_after}");
    }
    // One that is switched off before a call reaches it has no say.
    let runs = AtomicU32::new(0);
    let switch = Arc::new(Switch::new(Fallback::new(only_connect).unwrap()));
    let pipeline = Pipeline::new().then(TurnsOff(switch.clone())).then(switch).classify(ScriptedService::classify);
    let service = ScriptedService::new("503", &clock).unwrap();
    assert!(time.block_on(pipeline.call_or(|| service.call(), counted(&runs))).is_ok());
    assert_eq!(runs.load(SeqCst), 1);
    // The standard stack ends a call by the rules of the fallback that is on at its begin or at its end.
    let (mut on, off) = (StandardConfig::default(), StandardConfig::default());
    on.fallback = Some(only_connect);
    for (before, after, runs_expected) in [(&off, &on, 0), (&on, &off, 0), (&on, &on, 0), (&off, &off, 1)] {
        let (service, runs) = (ScriptedService::new("503", &clock).unwrap(), AtomicU32::new(0));
        let stack = Standard::builder(before.clone()).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(Wrapped(stack.clone())).classify(ScriptedService::classify);
        let turn = || {
            stack.reconfigure(after.clone()).unwrap();
            service.call()
        };
        let done = time.block_on(pipeline.call_or(turn, counted(&runs))).is_ok();
        assert_eq!((done, runs.load(SeqCst)), (runs_expected == 1, runs_expected));
    }
}

// Guarantee: hedge 1.
#[test]
fn a_hedge_in_a_wrapper_hedges() {
    macro_rules! hedges {
        ($($policy:expr),+) => {$({
            let (clock, time) = Clock::manual();
            let hedge = Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).build().unwrap();
            let pipeline = Pipeline::new().then($policy(hedge)).classify(ScriptedService::classify);
            let service = ScriptedService::new("ok in 1s, ok in 20ms", &clock).unwrap();
            assert_eq!(time.block_on(pipeline.call(|| service.call())).unwrap(), 200);
            assert_eq!((service.gaps(), service.dropped()), (vec![MS(50)], 1));
            let service = ScriptedService::new("ok in 1s, ok in 20ms", &clock).unwrap();
            assert_eq!(time.block_on(pipeline.boxed().call(|| service.call())).unwrap(), 200);
            assert_eq!((service.gaps(), service.dropped()), (vec![MS(50)], 1));
        })+};
    }
    hedges!(Wrapped, Lends, |own| Wrapped(Lends(own)), |own| (Passes, own), |own| (Lends(own), Passes));
}
