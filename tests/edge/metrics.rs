//! The metrics of the rooms, as a recorder receives them, and the state of issuers.
use std::{collections::BTreeSet, sync::Arc};

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use steadfast::{
    codec::Codec,
    gatekeeper::{HandOver, HandOverConfig, TrustedHost, TrustedHostConfig},
    metrics::{Metrics, series},
    store::InMemoryStore,
    testing::{PortAnswer, ProviderMood, ScriptedPort},
    token::{Key, KeyRing},
    valet_key::{Grant, Operation, ValetKeyConfig, ValetKeys},
};

use crate::{
    federated_identity::{A, B, S, World, claims},
    gatekeeper::requests,
};

/// Returns the value of a series on the page; `series` is the text up to the space.
fn read(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn the_rooms_at_the_edge_count_what_their_events_tell() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let world = World::new();
    let metrics = Metrics::builder().recorder(recorder).clock(&world.clock).build();
    metrics.watch("v", &world.verifier).unwrap();
    let key = Key::generate("one").unwrap();
    let codec: Codec<u32> = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let (ring, keys) = (KeyRing::new([key.clone()]).unwrap(), KeyRing::new([key.to_public().unwrap()]).unwrap());
    let gate =
        HandOver::builder("h", ring, codec.clone(), HandOverConfig::default()).clock(&world.clock).build().unwrap();
    let port = ScriptedPort::new(&world.clock);
    let store = port.store(Arc::new(InMemoryStore::builder().clock(&world.clock).build()));
    let host = TrustedHost::builder("h", keys, store, codec, TrustedHostConfig::default());
    let host = host.clock(&world.clock).build().unwrap();
    metrics.watch("h", &host).unwrap();
    let secret = KeyRing::new([Key::secret("one", &[7; 32]).unwrap()]).unwrap();
    let valets = ValetKeys::builder("k", secret, ValetKeyConfig::default()).clock(&world.clock).build().unwrap();
    metrics.watch("k", &valets).unwrap();
    let valet = valets.issue(Grant::put("a").max_bytes(3)).unwrap();
    world.time.block_on(valets.check(Operation::Get, "/a", valet.as_str())).unwrap_err();
    let pass = world.time.block_on(valets.check(Operation::Put, "/a", valet.as_str())).unwrap();
    let body = futures::stream::iter([Ok::<_, ()>("123"), Ok("4")]);
    world.time.block_on(futures::StreamExt::count(pass.limit(body)));
    let requests = requests::World::new();
    metrics.watch("g", &requests.layer).unwrap();

    world.verify(&world.a.token(&claims(A))).unwrap();
    world.verify("").unwrap_err();
    world.time.advance(S(30));
    world.a.is(ProviderMood::Empty);
    let unknown = world.a.sign(&json!({ "alg": "ES256", "kid": "?" }), &claims(A));
    world.verify(&unknown).unwrap_err();
    let sealed = gate.seal(&7).unwrap();
    world.time.block_on(host.open(&sealed)).unwrap();
    world.time.block_on(host.open(&sealed)).unwrap_err();
    world.time.block_on(host.open(b"x")).unwrap_err();
    port.by(|_| PortAnswer::fail(steadfast::port::PortErrorKind::Unavailable));
    world.time.block_on(host.open(&gate.seal(&8).unwrap())).unwrap_err();
    requests.send(::http::Request::get("/admin").body(requests.body(&[], false)).unwrap());

    let text = metrics.scrape(|| page.render());
    for (series, value) in [
        ("steadfast_token_verifier_refused_total{name=\"v\",reason=\"missing\"}", 1.0),
        ("steadfast_token_verifier_refused_total{name=\"v\",reason=\"unavailable\"}", 1.0),
        ("steadfast_token_verifier_refused_total{name=\"v\",reason=\"key\"}", 0.0),
        ("steadfast_token_verifier_fetches_total{name=\"v\"}", 1.0),
        ("steadfast_token_verifier_fetch_failures_total{name=\"v\",why=\"no_key\"}", 1.0),
        ("steadfast_token_verifier_issuers{name=\"v\"}", 2.0),
        ("steadfast_token_verifier_issuers_away{name=\"v\"}", 1.0),
        ("steadfast_trusted_host_refused_total{name=\"h\",reason=\"malformed\"}", 1.0),
        ("steadfast_trusted_host_replayed_total{name=\"h\"}", 1.0),
        ("steadfast_trusted_host_undecodable_total{name=\"h\"}", 0.0),
        ("steadfast_trusted_host_store_failures_total{name=\"h\"}", 1.0),
        ("steadfast_valet_keys_events_total{name=\"k\",event=\"issued\"}", 1.0),
        ("steadfast_valet_keys_events_total{name=\"k\",event=\"used\"}", 1.0),
        ("steadfast_valet_keys_refused_total{name=\"k\",reason=\"operation\"}", 1.0),
        ("steadfast_valet_keys_bytes_total{name=\"k\"}", 3.0),
        ("steadfast_gate_refused_total{name=\"g\",rule=\"route\"}", 1.0),
        ("steadfast_gate_refused_total{name=\"g\",rule=\"busy\"}", 0.0),
        ("steadfast_gate_bodies{name=\"g\"}", 0.0),
    ] {
        assert_eq!(read(&text, series), Some(value), "{series}");
    }
    // The table has these rooms' series, and no other ones of them.
    let kinds = ["steadfast_token_verifier_", "steadfast_trusted_host_", "steadfast_valet_keys_", "steadfast_gate_"];
    let is_of_edge = |name: &&str| kinds.iter().any(|kind| name.starts_with(kind));
    let table: BTreeSet<_> = series().map(|series| series.name).filter(is_of_edge).collect();
    let names = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let registered: BTreeSet<_> = names.filter(|name| !name.is_empty()).collect();
    assert_eq!(registered, table);
}

#[test]
fn the_state_of_an_issuer_tells_its_keys_and_for_how_long_they_serve() {
    let world = World::new();
    let state = |at: usize| world.verifier.state().swap_remove(at);
    assert_eq!((state(0).issuer.as_str(), state(1).issuer.as_str()), (A, B));
    assert_eq!((state(0).keys, state(0).serves_for, state(0).is_away), (0, S(0), false), "not fetched yet");
    world.verify(&world.a.token(&claims(A))).unwrap();
    world.time.advance(S(600));
    assert_eq!((state(0).keys, state(0).serves_for, state(0).is_away), (1, S(3000), false));
    world.a.is(ProviderMood::Fails);
    world.verify(&world.a.token(&claims(A))).unwrap();
    world.run_spawned();
    assert_eq!((state(0).keys, state(0).is_away, state(1).is_away), (1, true, false));
}
