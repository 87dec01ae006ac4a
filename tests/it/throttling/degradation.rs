//! Features are switched off in a stated order while a gauge is high, and on again in reverse
//! order.
use std::time::Duration;

use proptest::prelude::*;
use steadfast::{
    Cause, Pipeline, PolicyKind, Reason,
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{Degradation, DegradationConfig, DegradationEvent, Gauge},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;

const FEATURES: [&str; 3] = ["recommendations", "avatars", "search"];

/// Settings with one gauge, which is 0 at the soft limit and 1 at the hard one.
fn config() -> DegradationConfig {
    DegradationConfig::of(FEATURES).limit("load", 0.0, 1.0)
}

fn degradation(config: DegradationConfig) -> (Degradation, Gauge, Clock, ManualClock) {
    let ((clock, time), load) = (Clock::manual(), Gauge::new());
    let degradation =
        Degradation::builder(config).name("front").clock(&clock).gauge("load", load.clone()).build().unwrap();
    load.set(-1.0);
    (degradation, load, clock, time)
}

fn off(degradation: &Degradation) -> Vec<String> {
    degradation.switched_off().iter().map(ToString::to_string).collect()
}

// Guarantee: throttling 18.
#[test]
fn features_are_switched_off_in_order_and_on_in_reverse() {
    let (degradation, load, _, time) = degradation(config());
    let features = FEATURES.map(|name| degradation.feature(name).unwrap());
    let on = || features.each_ref().map(|feature| feature.is_enabled());
    assert_eq!(on(), [true, true, true]);
    load.set(0.5);
    time.advance(MS(100));
    assert_eq!(on(), [false, true, true], "the first at once");
    time.advance(MS(900));
    assert_eq!(on(), [false, true, true]);
    time.advance(MS(100));
    assert_eq!(on(), [false, false, true], "the next a step later");
    time.advance(S(1));
    assert_eq!((on(), off(&degradation)), ([false, false, false], FEATURES.map(String::from).to_vec()));
    load.set(-1.0);
    time.advance(MS(100));
    assert_eq!(on(), [false, false, false], "below, but not for long");
    for expected in [[false, false, true], [false, true, true], [true, true, true]] {
        time.advance(MS(9_900));
        assert_ne!(on(), expected);
        time.advance(MS(100));
        assert_eq!(on(), expected, "the last one switched off is the first one on");
    }
}

// Guarantee: throttling 18.
#[test]
fn from_the_hard_limit_on_all_features_are_switched_off_at_once() {
    let (degradation, load, ..) = degradation(config());
    load.set(1.0);
    assert_eq!(off(&degradation), FEATURES);
}

// Guarantee: throttling 18.
/// A value just below the soft limit, or below it for a moment, enables nothing: the load of a
/// feature that returns shall not switch it off again.
#[test]
fn between_the_limits_nothing_changes() {
    let (degradation, load, _, time) = degradation(config().margin(0.2));
    load.set(0.1);
    assert_eq!(off(&degradation), FEATURES[..1]);
    load.set(-0.1);
    for _ in 0..100 {
        time.advance(S(1));
        assert_eq!(off(&degradation), FEATURES[..1], "not below by the margin");
    }
    for _ in 0..20 {
        load.set(-0.3);
        for _ in 0..9 {
            time.advance(S(1));
            assert_eq!(off(&degradation), FEATURES[..1], "not for long enough");
        }
        load.set(-0.1);
        time.advance(S(1));
        assert_eq!(off(&degradation), FEATURES[..1]);
    }
    // An unknown value changes nothing.
    load.set(f64::NAN);
    time.advance(S(3600));
    assert_eq!(off(&degradation), FEATURES[..1]);
}

proptest! {
    // Guarantee: throttling 18.
    /// Compared with a list of all readings, evaluated from its beginning each time.
    #[test]
    fn the_number_of_disabled_features_equals_a_walk_through_all_readings(
        step in 0u32..12, hold in 1u32..30, margin in 0.0f64..0.4,
        course in prop::collection::vec((prop_oneof![3 => -1.0f64..1.1, 1 => Just(f64::NAN)], 1usize..25), 1..40)
    ) {
        let config = config().step(MS(100) * step).hold(MS(100) * hold).margin(margin);
        let (degradation, load, _, time) = degradation(config);
        // In ticks of 100 ms: the value of each reading.
        let mut readings = Vec::new();
        for (value, ticks) in course {
            for _ in 0..ticks {
                load.set(value);
                readings.push(value);
                let got = off(&degradation);
                prop_assert_eq!(&got, &FEATURES[..naive(&readings, step as usize, hold as usize, margin)]);
                time.advance(MS(100));
            }
        }
    }
}

/// Returns the number of disabled features after these readings.
fn naive(readings: &[f64], step: usize, hold: usize, margin: f64) -> usize {
    let (mut level, mut changed, mut below) = (0, 0, 0);
    for (at, value) in readings.iter().enumerate() {
        if value.is_nan() {
            below += usize::from(below > 0); // time goes on
        } else if *value >= 1.0 {
            (below, changed) = (0, if level < 3 { at } else { changed });
            level = 3;
        } else if *value > 0.0 {
            below = 0;
            if level == 0 || (level < 3 && at - changed >= step) {
                (level, changed) = (level + 1, at);
            }
        } else if *value < -margin || margin == 0.0 {
            below += 1;
            // `below - 1` ticks since the first reading that was below; the same time again after
            // each feature.
            while level > 0 && below > hold && (at - changed).min(below - 1) >= hold {
                level -= 1;
                changed = changed.max(at + 1 - below) + hold;
                below = at + 1 - changed;
            }
        } else {
            below = 0;
        }
    }
    level
}

// Guarantee: throttling 18.
#[test]
fn a_disabled_feature_rejects_calls_as_a_policy() {
    let (degradation, load, _, time) = degradation(config());
    let avatars = degradation.feature("avatars").unwrap();
    assert_eq!((avatars.name(), degradation.feature("avatar").is_none()), ("avatars", true));
    let pipeline = Pipeline::new().then(avatars.clone());
    assert!(time.block_on(pipeline.call(async || Ok::<_, ()>(()))).is_ok());
    load.set(1.0);
    time.advance(MS(100));
    let Cause::Rejected(rejected) = time.block_on(pipeline.call(async || Ok::<_, ()>(()))).unwrap_err().into_cause()
    else {
        panic!("it is off")
    };
    assert_eq!((rejected.by(), rejected.reason()), (PolicyKind::Degradation, Reason::SwitchedOff));
    assert_eq!((rejected.name(), rejected.retry_after()), (Some("avatars"), Some(S(10))));
    assert!(rejected.is_shed() && avatars.ensure_enabled().is_err());
    assert!(time.block_on(avatars.call(async || Ok::<_, ()>(()))).is_err());
}

// Guarantee: throttling 18.
#[test]
fn events_of_switching_come_in_order() {
    let (degradation, load, clock, time) = degradation(config());
    let mut events = degradation.events();
    let course = async {
        for value in [0.5, 1.0, -1.0] {
            load.set(value);
            clock.sleep(S(1)).await;
        }
    };
    time.block_on(async { futures::join!(degradation.run(clock.sleep(S(60))), course) });
    let sent: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).collect();
    assert!(sent.iter().all(|event| event.source.as_ref().is_some_and(|name| name.as_str() == "front")));
    let off = |name: &str| DegradationEvent::SwitchedOff { feature: name.into() };
    let on = |name: &str| DegradationEvent::SwitchedOn { feature: name.into() };
    let what: Vec<_> = sent.into_iter().map(|event| event.what).collect();
    let [first, second, third] = FEATURES;
    assert_eq!(what, [off(first), off(second), off(third), on(third), on(second), on(first)]);
}

#[test]
fn every_future_of_a_degradation_can_be_dropped() {
    let (degradation, load, clock, time) = degradation(config());
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    let feature = degradation.feature("search").unwrap();
    drop_at_every_await(&time, || feature.call(|| service.call()), |_| assert_eq!(service.running(), 0));
    load.set(1.0);
    drop_at_every_await(
        &time,
        || degradation.run(clock.sleep(MS(350))),
        |polls| assert!(polls == 0 || !feature.is_enabled(), "asking reads the gauge"),
    );
}

// Guarantee: throttling 19.
#[test]
fn invalid_settings_are_refused_with_the_field_s_name() {
    let refused = [
        (DegradationConfig::default(), "features"),
        (DegradationConfig::of(["a", "b", "a"]), "features"),
        (config().limit("load", 1.0, 0.0), "limits.load.hard"),
        (config().sample_every(Duration::ZERO), "sample_every"),
        (config().step(S(1)).hold(Duration::ZERO), "hold"),
        (config().margin(-0.1), "margin"),
        (config().margin(f64::NAN), "margin"),
    ];
    for (config, field) in refused {
        assert_eq!(Degradation::new(config).unwrap_err().field(), field);
    }
    assert_eq!(Degradation::builder(config()).gauge("cpu", || 0.0).build().unwrap_err().field(), "limits.cpu");
}

#[test]
fn explain_shows_features_gauges_and_warnings() {
    let (good, ..) = degradation(config());
    let text = good.explain().to_string();
    assert!(text.contains("recommendations, then avatars, then search") && !text.contains("warning"), "{text}");
    let blind = Degradation::new(config()).unwrap();
    assert!(blind.explain().to_string().contains("no gauge is watched"));
    let feature = blind.feature("search").unwrap();
    assert!(Pipeline::new().then(feature).explain().to_string().contains("the feature `search`"));
}
