//! Reading, writing, preconditions and versions.
use super::*;

/// A record that is not there is `None`, and no scan shows it.
pub async fn a_record_that_is_not_there_is_none(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    assert_eq!(ok(store.get(Key::new("p", "nope")).await), None);
    let page = ok(store.scan(&Scan::partition("p")).await);
    assert_eq!((page.rows.len(), page.next), (0, None));
}

/// A put is visible through both handles; partitions are independent.
pub async fn a_put_is_visible_through_a_second_handle(fixture: &Fixture<dyn Store>) {
    let key = Key::new("p", "r");
    let first = ok(fixture.port().insert(key, "one").await);
    let record = ok(fixture.other().get(key).await);
    assert_eq!(record, Some(Record { value: "one".into(), version: first }));
    let second = ok(fixture.other().put(key, "two".into(), PutOptions::new()).await);
    assert_ne!(second, first);
    assert_eq!(value(fixture.port(), key).await.as_deref(), Some("two"));
    // Also where a handle has read the record before.
    for round in 0..3 {
        for (one, another) in [(fixture.port(), fixture.other()), (fixture.other(), fixture.port())] {
            let version = ok(one.put(key, round.to_string().into(), PutOptions::new()).await);
            let expected = Some(Record::new(round.to_string().into(), version));
            assert_eq!((ok(one.get(key).await), ok(another.get(key).await)), (expected.clone(), expected));
        }
    }
    assert_eq!(value(fixture.port(), Key::new("q", "r")).await, None);
    assert_eq!(value(fixture.port(), Key::new("r", "p")).await, None);
}

// Guarantee: store 1.
/// A failed precondition returns the current version.
pub async fn a_precondition_that_fails_names_the_current_version(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let current = |result: Result<(), StoreError>| match result {
        Err(StoreError::Conflict { write: 0, current }) => current,
        other => panic!("a conflict is due, not {other:?}"),
    };
    let first = ok(store.insert(key, "one").await);
    assert_eq!(current(store.insert(key, "x").await.map(drop)), Some(first));
    let second = ok(store.replace(key, "two", first).await);
    assert_eq!(current(store.replace(key, "x", first).await.map(drop)), Some(second));
    let old = DeleteOptions::new().when(Precondition::Version(first));
    assert_eq!(current(store.delete(key, old).await.map(drop)), Some(second));
    assert_eq!(value(fixture.other(), key).await.as_deref(), Some("two"));
    assert!(ok(store.delete(key, Precondition::Version(second).into()).await));
    assert_eq!(current(store.replace(key, "x", second).await.map(drop)), None);
    let third = ok(store.insert(key, "three").await);
    for version in [second, Version::new(u64::MAX)] {
        assert_eq!(current(store.replace(key, "x", version).await.map(drop)), Some(third), "{version}");
    }
    assert_eq!(ok(fixture.other().get(key).await), Some(Record::new("three".into(), third)));
    assert!(ok(store.delete(key, DeleteOptions::new()).await));
    assert_eq!(current(store.delete(key, Precondition::Version(second).into()).await.map(drop)), None);
}

/// Runs concurrent tasks, half of them on each handle, and returns their results.
async fn race_at_both_doors<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    fixture: &Fixture<dyn Store>,
    tasks: usize,
    task: impl Fn(std::sync::Arc<dyn Store>, usize) -> F,
) -> Vec<T> {
    let handle = |i: usize| if i.is_multiple_of(2) { fixture.shared() } else { fixture.shared_other() };
    let tasks: Vec<_> = (0..tasks).map(|i| tokio::spawn(task(handle(i), i))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap_or_else(|e| panic!("a task: {e}")));
    }
    results
}

// Guarantee: store 1.
/// Of concurrent writers with one version exactly one wins; the others receive a later version.
pub async fn of_many_writers_with_one_version_one_wins(fixture: &Fixture<dyn Store>) {
    let key = Key::new("p", "r");
    let mut version = ok(fixture.port().insert(key, "start").await);
    for _ in 0..5 {
        let results =
            race_at_both_doors(
                fixture,
                16,
                move |store, i| async move { store.replace(key, i.to_string(), version).await },
            );
        let results = results.await;
        let winners: Vec<(usize, Version)> =
            results.iter().enumerate().filter_map(|(i, r)| r.as_ref().ok().map(|v| (i, *v))).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let (winner, next) = winners[0];
        assert!(
            results
                .iter()
                .filter_map(|r| r.as_ref().err())
                .all(|error| matches!(error, StoreError::Conflict { current: Some(current), .. } if *current == next))
        );
        assert_eq!(value(fixture.port(), key).await, Some(winner.to_string()));
        version = next;
    }
}

// Guarantee: store 1.
/// Of concurrent inserts exactly one succeeds; the others receive its version.
pub async fn of_many_writers_to_an_absent_record_one_wins(fixture: &Fixture<dyn Store>) {
    for round in 0..5 {
        let insert = move |store: std::sync::Arc<dyn Store>, i: usize| async move {
            store.insert(Key::new("p", &format!("r{round}")), i.to_string()).await
        };
        let (won, lost): (Vec<_>, Vec<_>) =
            race_at_both_doors(fixture, 16, insert).await.into_iter().partition(Result::is_ok);
        let [Ok(version)] = won[..] else { panic!("one must win, not {won:?}") };
        let is_conflict = |result: &Result<Version, StoreError>| matches!(result, Err(StoreError::Conflict { current, .. }) if *current == Some(version));
        assert!(lost.iter().all(is_conflict), "{version} won, not {lost:?}");
    }
}

// Guarantee: store 1.
/// Concurrent increments by compare-and-set through both handles lose none.
pub async fn concurrent_updates_lose_nothing(fixture: &Fixture<dyn Store>) {
    const EACH: usize = 10;
    let key = Key::new("p", "counter");
    let count = |record: Option<&Record>| -> usize {
        let text = record.map(|record| String::from_utf8_lossy(&record.value).into_owned());
        text.map_or(0, |text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}")))
    };
    race_at_both_doors(fixture, 8, move |store, _| async move {
        for _ in 0..EACH {
            let mut rounds = 0;
            let increment = |record: Option<&Record>| {
                rounds += 1;
                // In each round one of the updates succeeds.
                assert!(rounds <= 10 * 8 * EACH, "each round is a conflict: a handle reads an old version");
                Some((count(record) + 1).to_string().into())
            };
            ok(store.update(key, increment).await);
        }
    })
    .await;
    assert_eq!(count(ok(fixture.port().get(key).await).as_ref()), 8 * EACH);
}

// Guarantee: store 2.
/// No version of a key repeats, not even after a delete or an expiry; versions grow if the backend
/// states so.
pub async fn versions_never_repeat(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let can = store.capabilities();
    let mut versions = Vec::new();
    for round in 0..4 {
        versions.push(ok(store.insert(key, "a").await));
        versions.push(ok(store.put(key, "b".into(), PutOptions::new()).await));
        ok(fixture.other().insert(Key::new("p", &format!("else {round}")), "x").await);
        assert!(ok(store.delete(key, DeleteOptions::new()).await));
        if can.has(Capability::TimeToLive) {
            versions.push(ok(store.put(key, "c".into(), PutOptions::new().ttl(a_while())).await));
            fixture.pass(a_while() + a_while() / 10).await;
            // Another write may make the backend remove the expired record.
            ok(store.put(Key::new("q", "r"), "x".into(), PutOptions::new()).await);
        }
        if can.has(Capability::AtomicBatch) {
            let versions_of = ok(store.batch("p", vec![Write::put("r", "d", Precondition::Absent)]).await);
            versions.extend(versions_of.into_iter().flatten());
            ok(store.batch("p", vec![Write::delete("r", Precondition::Any)]).await);
        }
    }
    assert_eq!(versions.iter().collect::<BTreeSet<_>>().len(), versions.len(), "{versions:?}");
    if can.has(Capability::OrderedVersions) {
        assert!(versions.is_sorted(), "{versions:?}");
    }
}

/// A delete reports whether a record existed; a precondition of absence is refused.
pub async fn a_delete_reports_whether_a_record_existed(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    assert!(!ok(store.delete(key, DeleteOptions::new()).await));
    ok(store.insert(key, "a").await);
    assert!(ok(fixture.other().delete(key, DeleteOptions::new()).await));
    assert!(!ok(store.delete(key, DeleteOptions::new()).await));
    assert_eq!(value(store, key).await, None);
    refused(store.delete(key, Precondition::Absent.into()).await, "when");
}
