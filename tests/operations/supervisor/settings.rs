//! Refused settings, and warnings.
use std::sync::Arc;

use steadfast::{
    port::Capability,
    store::InMemoryStore,
    supervisor::{Child, Supervisor, SupervisorConfig},
    testing::ScriptedPort,
    time::Clock,
};

use super::{Log, builder, obedient};
use crate::world::{S, World};

// Guarantee: supervisor 8.
#[test]
fn settings_that_cannot_work_are_refused_with_their_field() {
    let (world, log) = (World::new(), Log::default());
    let config = SupervisorConfig::default();
    let one = |config| builder(&world, config).child(obedient("a", &log)).build();
    let refused = |built: Result<Supervisor, steadfast::ConfigError>, expected: &str| {
        assert_eq!(built.unwrap_err().to_string(), expected);
    };
    refused(builder(&world, config).build(), "invalid `child`: must be added at least once");
    let twice = builder(&world, config).child(obedient("a", &log)).child(obedient("a", &log)).build();
    refused(twice, "invalid `child`: must not have the name `a` twice");
    for share in [0.0, -1.0, 1.1, f64::NAN] {
        let child = obedient("a", &log).max_poll_share(share);
        let built = builder(&world, config).child(child).build();
        refused(built, "invalid `a.max_poll_share`: must be above 0 and at most 1");
    }
    let rule = "invalid `stop_timeout`: must not be longer than `shutdown_timeout`";
    refused(one(config.stop_timeout(S(26))), rule);
    assert!(one(config.stop_timeout(S(25))).is_ok());
    let weak = ScriptedPort::changing(&Clock::tokio(), |can| can.without(Capability::Linearizable));
    let weak = weak.store(Arc::new(InMemoryStore::new()));
    let built = builder(&world, config).child(obedient("a", &log)).checkpoints(weak).build();
    assert_eq!(built.unwrap_err().field(), "checkpoints");
    let nameless = Supervisor::builder(config).child(obedient("a", &log)).checkpoints(Arc::new(InMemoryStore::new()));
    refused(nameless.build(), "invalid `name`: must be set for checkpoints");
    let unmetered = obedient("a", &log).unmetered().max_poll_share(0.5);
    let rule = "invalid `a.max_poll_share`: must not be set for a child that is not metered";
    refused(builder(&world, config).child(unmetered).build(), rule);
    // Two nested supervisors with the same rows.
    let store = || Arc::new(InMemoryStore::new());
    let inner = |name: &'static str| {
        let built = builder(&world, config).name(name).checkpoints(store()).child(obedient("a", &log));
        Child::supervisor(format!("child {name}"), built.build().unwrap())
    };
    let rule = "invalid `name`: must not be that of two supervisors with checkpoints: `feeds`";
    let again = Child::supervisor("again", builder(&world, config).child(inner("feeds")).build().unwrap());
    refused(builder(&world, config).child(inner("feeds")).child(again).build(), rule);
    let rule = rule.replace("feeds", "worker");
    refused(builder(&world, config).checkpoints(store()).child(inner("worker")).build(), &rule);
    assert!(builder(&world, config).checkpoints(store()).child(inner("feeds")).child(inner("b")).build().is_ok());
}

// Guarantee: supervisor 8.
#[test]
fn nested_budgets_that_multiply_to_more_than_25_are_warned_of() {
    let (world, log) = (World::new(), Log::default());
    let nested = |inner, outer| {
        let config = SupervisorConfig::default();
        let inner = builder(&world, config.max_restarts(inner)).child(obedient("a", &log)).build().unwrap();
        let outer = builder(&world, config.max_restarts(outer)).child(Child::supervisor("inner", inner));
        outer.build().unwrap().explain().warnings()
    };
    let many = (0..6).map(|i| Child::new(i.to_string(), |_| async { Ok::<_, String>(()) }));
    let many = many.fold(builder(&world, SupervisorConfig::default()), |built, child| built.child(child));
    assert!(many.build().unwrap().explain().warnings()[0].contains("6 children share a budget of 5"));
    assert!(nested(5, 5).is_empty());
    let warnings = nested(6, 5);
    assert!(warnings[0].contains("up to 30 restarts before an escalation"), "{warnings:?}");
}
