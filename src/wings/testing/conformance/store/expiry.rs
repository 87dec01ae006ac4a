//! Times to live.
use super::*;

/// Returns a store that has times to live, or asserts that one without refuses them.
async fn with_lives(fixture: &Fixture<dyn Store>) -> Option<&dyn Store> {
    let store = fixture.port();
    if store.capabilities().has(Capability::TimeToLive) {
        return Some(store);
    }
    let put = store.put(Key::new("p", "r"), "a".into(), PutOptions::new().ttl(a_while())).await;
    assert!(is_unsupported(put));
    None
}

// Guarantee: store 5.
/// An expired record is absent for reads, scans and preconditions.
pub async fn a_record_ends_when_its_time_is_over(fixture: &Fixture<dyn Store>) {
    let (Some(store), key) = (with_lives(fixture).await, Key::new("p", "r")) else { return };
    let version = ok(store.put(key, "a".into(), PutOptions::new().ttl(a_while())).await);
    ok(store.insert(Key::new("p", "s"), "stays").await);
    assert_eq!(value(fixture.other(), key).await.as_deref(), Some("a"));
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(value(fixture.other(), key).await, None);
    assert_eq!(rows(fixture.other(), Scan::partition("p")).await, ["s"]);
    let late = store.replace(key, "b", version).await;
    assert!(matches!(late, Err(StoreError::Conflict { current: None, .. })), "{late:?}");
    assert!(!ok(store.delete(key, DeleteOptions::new()).await));
    ok(store.insert(key, "c").await);
    assert!(is_invalid(store.put(key, "d".into(), PutOptions::new().ttl(Duration::ZERO)).await));
}

// Guarantee: store 5.
/// A later write without a time to live makes the record permanent; a longer time to live prolongs
/// it.
pub async fn a_later_write_without_a_time_makes_it_last(fixture: &Fixture<dyn Store>) {
    let Some(store) = with_lives(fixture).await else { return };
    let short = PutOptions::new().ttl(a_while());
    for row in ["lasts", "longer"] {
        ok(store.put(Key::new("p", row), "a".into(), short).await);
    }
    ok(store.put(Key::new("p", "lasts"), "b".into(), PutOptions::new()).await);
    ok(store.put(Key::new("p", "longer"), "b".into(), PutOptions::new().ttl(a_while() * 3)).await);
    let replaced = Key::new("p", "replaced");
    let version = ok(store.put(replaced, "a".into(), short).await);
    ok(store.replace(replaced, "b", version).await);
    fixture.pass(a_while() * 2).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["lasts", "longer", "replaced"]);
    fixture.pass(a_while() * 2).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["lasts", "replaced"]);
}

// Guarantee: store 5.
/// The life of a record begins with each write that sets it, also in a batch. Reads, scans and
/// refused writes leave it as it is.
pub async fn only_an_accepted_write_changes_a_life(fixture: &Fixture<dyn Store>) {
    let Some(store) = with_lives(fixture).await else { return };
    let (read, refused, renewed) = (Key::new("p", "read"), Key::new("p", "refused"), Key::new("p", "renewed"));
    let life = PutOptions::new().ttl(a_while() * 3);
    for key in [read, refused, renewed] {
        ok(store.put(key, "a".into(), life).await);
    }
    let can_batch = store.capabilities().has(Capability::AtomicBatch);
    if can_batch {
        ok(store.batch("p", vec![Write::put("batched", "a", life)]).await);
    }
    fixture.pass(a_while() * 2).await;
    assert!(ok(fixture.other().get(read).await).is_some());
    rows(store, Scan::partition("p")).await;
    let late = store.put(refused, "b".into(), life.when(Precondition::Absent)).await;
    assert!(late.is_err_and(|error| error.is_conflict()));
    ok(store.put(renewed, "b".into(), life).await);
    fixture.pass(a_while() * 3 / 2).await;
    assert_eq!(rows(fixture.other(), Scan::partition("p")).await, ["renewed"]);
}

// Guarantee: store 5.
/// A long time to live is neither shortened nor refused.
pub async fn a_long_life_is_not_shortened(fixture: &Fixture<dyn Store>) {
    const DAY: Duration = Duration::from_secs(86_400);
    let Some(store) = with_lives(fixture).await else { return };
    ok(store.put(Key::new("p", "month"), "a".into(), PutOptions::new().ttl(30 * DAY)).await);
    ok(store.put(Key::new("p", "longest"), "a".into(), PutOptions::new().ttl(Duration::MAX)).await);
    assert_eq!(rows(store, Scan::partition("p")).await, ["longest", "month"]);
    if !fixture.is_on_manual_time() {
        return;
    }
    fixture.pass(29 * DAY).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["longest", "month"]);
    fixture.pass(2 * DAY).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["longest"]);
}

// Guarantee: store 3.
/// Pages of a scan that skip expired rows do not end it, in either direction.
pub async fn a_page_of_expired_rows_ends_no_scan(fixture: &Fixture<dyn Store>) {
    let Some(store) = with_lives(fixture).await else { return };
    for i in 0..12 {
        let options = if i % 6 == 3 { PutOptions::new() } else { PutOptions::new().ttl(a_while()) };
        ok(store.put(Key::new("p", &format!("{i:02}")), "x".into(), options).await);
    }
    fixture.pass(a_while() + a_while() / 10).await;
    for limit in [1, 2, 3] {
        let scan = Scan::partition("p").limit(limit);
        assert_eq!(rows(fixture.other(), scan.clone()).await, ["03", "09"]);
        assert_eq!(rows(store, scan.descending()).await, ["09", "03"]);
    }
}

// Guarantee: store 5.
/// A record lives by the store's clock: a jump of the client's wall clock neither ends nor prolongs
/// its life.
pub async fn a_life_follows_no_wall_clock(fixture: &Fixture<dyn Store>) {
    let Some(store) = with_lives(fixture).await else { return };
    if !fixture.set_wall(NOON) {
        return;
    }
    ok(store.put(Key::new("p", "long"), "x".into(), PutOptions::new().ttl(HOUR)).await);
    ok(store.put(Key::new("p", "short"), "x".into(), PutOptions::new().ttl(a_while())).await);
    fixture.set_wall(later(NOON, 2 * HOUR));
    assert_eq!(rows(store, Scan::partition("p")).await, ["long", "short"]);
    ok(store.put(Key::new("p", "late"), "x".into(), PutOptions::new().ttl(a_while())).await);
    fixture.set_wall(NOON);
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["long"]);
}
