//! Restarts of the backend, by the fixture's hook.
use super::*;
use crate::store::Sequence;

// Guarantee: store 14.
/// Records, deletions and batches are as they were accepted before the restart.
pub async fn what_was_accepted_outlives_a_restart(fixture: &mut Fixture<dyn Store>) {
    fixture.assert_can_restart(fixture.port().capabilities());
    if !fixture.can_restart() {
        return;
    }
    let store = fixture.port();
    ok(store.insert(Key::new("p", "deleted"), "x").await);
    assert!(ok(store.delete(Key::new("p", "deleted"), DeleteOptions::new()).await));
    ok(store.insert(Key::new("p", "replaced"), "one").await);
    let large = vec![7; (1 << 20).min(store.capabilities().max_value())];
    ok(fixture.other().put(Key::new("p", "large"), large.clone().into(), PutOptions::new()).await);
    if store.capabilities().has(Capability::AtomicBatch) {
        let put = |row: &str| Write::put(row, "two", Precondition::Any);
        ok(store.batch("p", vec![put("batched"), put("replaced")]).await);
    }
    let before = ok(store.scan_all(Scan::partition("p")).await);
    fixture.restart().await;
    for handle in [fixture.port(), fixture.other()] {
        assert_eq!(ok(handle.scan_all(Scan::partition("p")).await), before);
        for row in &before {
            let read = ok(handle.get(Key::new("p", &row.row)).await);
            assert_eq!(read, Some(Record::new(row.value.clone(), row.version)));
        }
    }
    // A client that read before the restart goes on after it.
    for row in before {
        ok(fixture.port().replace(Key::new("p", &row.row), "new", row.version).await);
    }
}

// Guarantee: store 2.
/// No version is given again after a restart, also not for a record that was deleted before it.
pub async fn versions_never_repeat_after_a_restart(fixture: &mut Fixture<dyn Store>) {
    if !fixture.can_restart() {
        return;
    }
    let (mut of_stays, mut of_deleted) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let store = fixture.port();
        of_stays.push(ok(store.put(Key::new("p", "stays"), "x".into(), PutOptions::new()).await));
        of_deleted.push(ok(store.insert(Key::new("p", "deleted"), "x").await));
        ok(fixture.other().insert(Key::new("p", &format!("else {round}")), "x").await);
        if store.capabilities().has(Capability::AtomicBatch) {
            let made = ok(store.batch("p", vec![Write::put("stays", "y", Precondition::Any)]).await);
            of_stays.extend(made.into_iter().flatten());
        }
        assert!(ok(store.delete(Key::new("p", "deleted"), DeleteOptions::new()).await));
        fixture.restart().await;
    }
    for versions in [of_stays, of_deleted] {
        assert_eq!(versions.iter().collect::<BTreeSet<_>>().len(), versions.len(), "{versions:?}");
        if fixture.port().capabilities().has(Capability::OrderedVersions) {
            assert!(versions.is_sorted(), "{versions:?}");
        }
    }
}

// Guarantee: store 6.
/// The fence of a key is as high after a restart as before, with and without a record.
pub async fn a_fence_outlives_a_restart(fixture: &mut Fixture<dyn Store>) {
    if !fixture.can_restart() || !fixture.port().capabilities().has(Capability::Fencing) {
        return;
    }
    let [low, high] = [3, 5].map(FencingToken::new);
    for row in ["stays", "deleted"] {
        ok(fixture.port().put_fenced(Key::new("p", row), "x", high).await);
    }
    assert!(ok(fixture.port().delete(Key::new("p", "deleted"), DeleteOptions::new().fence(high)).await));
    fixture.restart().await;
    for row in ["stays", "deleted"] {
        let late = fixture.port().put_fenced(Key::new("p", row), "late", low).await;
        assert!(matches!(late, Err(StoreError::Fenced { highest, .. }) if highest == high), "{row}: {late:?}");
        ok(fixture.other().put_fenced(Key::new("p", row), "in time", high).await);
    }
}

// Guarantee: store 5.
/// A life does not begin anew with a restart: an expired record stays absent, and a running life
/// ends in time.
pub async fn lives_go_on_over_a_restart(fixture: &mut Fixture<dyn Store>) {
    if !fixture.can_restart() || !fixture.port().capabilities().has(Capability::TimeToLive) {
        return;
    }
    let store = fixture.port();
    for (row, life) in [("ended", a_while()), ("ends", a_while() * 3), ("lives", HOUR)] {
        ok(store.put(Key::new("p", row), "x".into(), PutOptions::new().ttl(life)).await);
    }
    fixture.pass(a_while() * 2).await;
    fixture.restart().await;
    assert!(ok(fixture.port().get(Key::new("p", "ended")).await).is_none());
    fixture.pass(a_while() + a_while() / 10).await;
    assert_eq!(rows(fixture.port(), Scan::partition("p")).await, ["lives"]);
    if fixture.is_on_manual_time() {
        fixture.pass(HOUR).await;
        assert_eq!(rows(fixture.port(), Scan::partition("p")).await, [""; 0]);
    }
}

// Guarantee: store 10, 14.
/// The numbers of a sequence go on after a restart behind the last one, also if its rows were
/// deleted.
pub async fn sequences_go_on_over_a_restart(fixture: &mut Fixture<dyn Store>) {
    if !fixture.can_restart() || !fixture.port().capabilities().has(Capability::OrderedAppend) {
        return;
    }
    let sequences = [Sequence::new("kept/"), Sequence::new("deleted/")];
    for number in 1..=4 {
        for sequence in sequences {
            let appended = ok(fixture.port().batch("p", vec![Write::append(sequence.as_str(), "x")]).await);
            assert_eq!(appended, [Some(Version::new(number))], "{sequence:?}");
        }
        let row = sequences[1].row(number);
        assert!(ok(fixture.other().delete(Key::new("p", &row), DeleteOptions::new()).await));
        fixture.restart().await;
    }
    let kept = rows(fixture.port(), Scan::partition("p")).await;
    assert_eq!(kept, (1..=4).map(|number| sequences[0].row(number)).collect::<Vec<_>>());
}
