//! Ends of records, fences, and what is odd or too large.
use super::*;

// Guarantee: store 5.
/// From its end on it is absent: for reads, scans and preconditions.
pub async fn a_record_ends_when_its_time_is_over(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let put = store.put(key, "a".into(), PutOptions::new().ttl(SHORT)).await;
    if !store.capabilities().has(Capability::TimeToLive) {
        return assert!(is_unsupported(put));
    }
    let version = ok(put);
    ok(store.insert(Key::new("p", "s"), "stays").await);
    assert_eq!(value(fixture.other(), key).await.as_deref(), Some("a"));
    fixture.pass(SHORT + SHORT / 10).await;
    assert_eq!(value(fixture.other(), key).await, None);
    assert_eq!(rows(fixture.other(), Scan::partition("p")).await, ["s"]);
    let late = store.replace(key, "b", version).await;
    assert!(matches!(late, Err(StoreError::Conflict { current: None, .. })), "{late:?}");
    assert!(!ok(store.delete(key, DeleteOptions::new()).await));
    ok(store.insert(key, "c").await);
    assert!(is_invalid(store.put(key, "d".into(), PutOptions::new().ttl(Duration::ZERO)).await));
}

// Guarantee: store 5.
/// A later write without a time to live makes it last; one with a longer one prolongs it.
pub async fn a_later_write_without_a_time_makes_it_last(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !store.capabilities().has(Capability::TimeToLive) {
        return;
    }
    let short = PutOptions::new().ttl(SHORT);
    for row in ["lasts", "longer"] {
        ok(store.put(Key::new("p", row), "a".into(), short).await);
    }
    ok(store.put(Key::new("p", "lasts"), "b".into(), PutOptions::new()).await);
    ok(store.put(Key::new("p", "longer"), "b".into(), PutOptions::new().ttl(SHORT * 3)).await);
    fixture.pass(SHORT * 2).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["lasts", "longer"]);
    fixture.pass(SHORT * 2).await;
    assert_eq!(rows(store, Scan::partition("p")).await, ["lasts"]);
}

// Guarantee: store 6.
/// A token below the highest that the key has seen: refused, for puts, deletes and batches.
pub async fn a_lower_fencing_token_is_refused(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let [low, mid, high] = [3, 5, 8].map(FencingToken::new);
    let put = store.put_fenced(key, "mid", mid).await;
    if !store.capabilities().has(Capability::Fencing) {
        return assert!(is_unsupported(put));
    }
    ok(put);
    let refused = |result: Result<(), StoreError>, seen: FencingToken| {
        assert!(matches!(result, Err(StoreError::Fenced { highest, .. }) if highest == seen), "{result:?}");
    };
    refused(fixture.other().put_fenced(key, "low", low).await.map(drop), mid);
    ok(fixture.other().put_fenced(key, "same", mid).await);
    ok(store.put_fenced(key, "high", high).await);
    refused(store.put_fenced(key, "mid", mid).await.map(drop), high);
    refused(store.delete(key, DeleteOptions::new().fence(mid)).await.map(drop), high);
    if store.capabilities().has(Capability::AtomicBatch) {
        let late = PutOptions::new().fence(mid);
        let batch =
            store.batch("p", vec![Write::put("other", "x", Precondition::Any), Write::put("r", "x", late)]).await;
        assert!(matches!(batch, Err(StoreError::Fenced { write: 1, highest }) if highest == high), "{batch:?}");
    }
    assert_eq!(rows(store, Scan::partition("p")).await, ["r"]);
    assert_eq!(value(store, key).await.as_deref(), Some("high"));
    // Keys have fences of their own, and a failed precondition raises none.
    ok(store.put_fenced(Key::new("p", "s"), "x", low).await);
    let failing = PutOptions::new().when(Precondition::Absent).fence(FencingToken::new(99));
    assert!(store.put(key, "x".into(), failing).await.is_err_and(|e| e.is_conflict()));
    ok(store.put_fenced(key, "high again", high).await);
}

// Guarantee: store 6.
/// The fence stays when the record was deleted, or its time is over.
pub async fn a_fence_outlives_its_record(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    if !store.capabilities().has(Capability::Fencing) {
        return;
    }
    let [low, high] = [3, 5].map(FencingToken::new);
    ok(store.put_fenced(key, "a", high).await);
    assert!(ok(store.delete(key, DeleteOptions::new().fence(high)).await));
    assert!(store.put_fenced(key, "late", low).await.is_err_and(|e| e.is_fenced()));
    if store.capabilities().has(Capability::TimeToLive) {
        ok(store.put(key, "b".into(), PutOptions::new().fence(high).ttl(SHORT)).await);
        fixture.pass(SHORT * 2).await;
        ok(store.put(Key::new("q", "r"), "x".into(), PutOptions::new()).await);
        assert!(fixture.other().put_fenced(key, "late", low).await.is_err_and(|e| e.is_fenced()));
    }
    ok(store.put_fenced(key, "c", high).await);
}

// Guarantee: store 7.
/// Any bytes, none, and a mebibyte.
pub async fn any_bytes_are_values(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![7; (1 << 20).min(store.capabilities().max_value())];
    for value in [all, Vec::new(), large] {
        ok(store.put(key, Bytes::from(value.clone()), PutOptions::new()).await);
        let read = ok(fixture.other().get(key).await).unwrap_or_else(|| panic!("it is there"));
        assert!(read.value == value);
    }
}

// Guarantee: store 7.
/// A key comes back as it went in, or is refused before it is sent: never as another.
pub async fn hostile_keys_come_back_or_are_refused(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let long = "x".repeat(1024);
    let keys = [
        "a/b",
        "a",
        "/",
        "%",
        "%2F",
        "..",
        ".",
        " ",
        "\t\n",
        "\u{0}",
        "a\u{0}b",
        "'",
        "\"; DROP TABLE records; --",
        "*",
        "a:b",
        "{}",
        "日本",
        "\u{10ffff}",
        "\u{feff}",
        "A",
        &long,
    ];
    let mut kept = BTreeSet::new();
    for key in keys {
        for key in [Key::new("p", key), Key::new(key, "r")] {
            match store.insert(key, key.to_string()).await {
                Ok(_) => assert!(kept.insert(key), "{key} is another key's"),
                refused => assert!(is_invalid(refused), "{key}"),
            }
        }
    }
    for key in &kept {
        assert_eq!(value(fixture.other(), *key).await, Some(key.to_string()));
    }
    let in_p: BTreeSet<&str> = kept.iter().filter(|key| key.partition == "p").map(|key| key.row).collect();
    assert_eq!(rows(store, Scan::partition("p")).await, in_p.into_iter().collect::<Vec<_>>());
    for key in [Key::new("", "r"), Key::new("p", "")] {
        assert!(is_invalid(store.get(key).await));
        assert!(is_invalid(store.put(key, "x".into(), PutOptions::new()).await));
        assert!(is_invalid(store.delete(key, DeleteOptions::new()).await));
    }
    assert!(is_invalid(store.scan(&Scan::partition("")).await));
}

// Guarantee: store 7.
/// Values and keys above the stated sizes are refused before they are sent.
pub async fn what_is_too_large_is_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if can.max_key() < 1 << 20 {
        let long = "x".repeat(can.max_key() + 1);
        for key in [Key::new("p", &long), Key::new(&long, "r")] {
            assert!(is_invalid(store.put(key, "x".into(), PutOptions::new()).await));
            assert!(is_invalid(store.get(key).await));
        }
    }
    if can.max_value() < 1 << 30 {
        let large = Bytes::from(vec![0; can.max_value() + 1]);
        assert!(is_invalid(store.put(Key::new("p", "r"), large.clone(), PutOptions::new()).await));
        if can.has(Capability::AtomicBatch) {
            let writes = vec![Write::put("small", "x", Precondition::Any), Write::put("r", large, Precondition::Any)];
            assert!(is_invalid(store.batch("p", writes).await));
        }
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
}
