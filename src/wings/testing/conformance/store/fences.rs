//! Fencing tokens.
use super::*;

// Guarantee: store 6.
/// A token below the highest of the key is refused, for puts, deletes and batches.
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
    // Each key has its own fence, and a failed precondition does not raise it.
    ok(store.put_fenced(Key::new("p", "s"), "x", low).await);
    let failing = PutOptions::new().when(Precondition::Absent).fence(FencingToken::new(99));
    assert!(store.put(key, "x".into(), failing).await.is_err_and(|e| e.is_conflict()));
    ok(store.put_fenced(key, "high again", high).await);
}

// Guarantee: store 6.
/// The fence stays after the record was deleted or expired.
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
        ok(store.put(key, "b".into(), PutOptions::new().fence(high).ttl(a_while())).await);
        fixture.pass(a_while() * 2).await;
        ok(store.put(Key::new("q", "r"), "x".into(), PutOptions::new()).await);
        assert!(fixture.other().put_fenced(key, "late", low).await.is_err_and(|e| e.is_fenced()));
    }
    ok(store.put_fenced(key, "c", high).await);
}

// Guarantee: store 6.
/// Each accepted write with a token raises the fence: a put, a delete, also of a record that is not
/// there, and each write of a batch. A refused write raises none.
pub async fn each_accepted_write_with_a_token_raises_the_fence(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !store.capabilities().has(Capability::Fencing) {
        return;
    }
    let [low, high] = [3, 5].map(FencingToken::new);
    let key = |row: &'static str| Key::new("p", row);
    ok(store.put(key("deleted"), "x".into(), PutOptions::new()).await);
    assert!(ok(store.delete(key("deleted"), DeleteOptions::new().fence(high)).await));
    assert!(!ok(store.delete(key("never there"), DeleteOptions::new().fence(high)).await));
    ok(store.put(key("put"), "x".into(), PutOptions::new().fence(high)).await);
    let mut raised = vec!["deleted", "never there", "put"];
    if store.capabilities().has(Capability::AtomicBatch) {
        let (put, delete) = (PutOptions::new().fence(high), DeleteOptions::new().fence(high));
        ok(store.batch("p", vec![Write::put("batch put", "x", put), Write::delete("batch delete", delete)]).await);
        raised.extend(["batch put", "batch delete"]);
        let failing = PutOptions::new().when(Precondition::Absent);
        let refused = store.batch("p", vec![Write::put("not raised", "x", put), Write::put("put", "x", failing)]).await;
        assert!(matches!(refused, Err(StoreError::Conflict { write: 1, .. })), "{refused:?}");
        ok(store.put_fenced(key("not raised"), "x", low).await);
    }
    for row in raised {
        let late = fixture.other().put_fenced(key(row), "late", low).await;
        assert!(matches!(late, Err(StoreError::Fenced { highest, .. }) if highest == high), "{row}: {late:?}");
        let late = fixture.other().delete(key(row), DeleteOptions::new().fence(low)).await;
        assert!(late.is_err_and(|error| error.is_fenced()), "{row}");
        ok(store.put_fenced(key(row), "in time", high).await);
    }
}

// Guarantee: store 6.
/// All 64 bits of tokens are compared, as numbers.
pub async fn tokens_are_compared_exactly(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    if !store.capabilities().has(Capability::Fencing) {
        return;
    }
    // 9 and 10 differ as texts; the others are equal as floating-point numbers, or negative as signed ones.
    let steps = [(9, 10), (1 << 53, (1 << 53) + 1), (i64::MAX as u64, 1 << 63), (u64::MAX - 1, u64::MAX)];
    for (below, token) in steps {
        ok(store.put_fenced(key, "x", FencingToken::new(token)).await);
        let late = fixture.other().put_fenced(key, "late", FencingToken::new(below)).await;
        let fenced = matches!(&late, Err(StoreError::Fenced { highest, .. }) if highest.as_u64() == token);
        assert!(fenced, "{below} after {token}: {late:?}");
        ok(store.put_fenced(key, "again", FencingToken::new(token)).await);
    }
}

// Guarantee: store 6.
/// A refusal for the token has precedence over the precondition's, so that an old leader learns
/// that it is one.
pub async fn a_stale_token_is_told_before_a_conflict(fixture: &Fixture<dyn Store>) {
    let (store, key) = (fixture.port(), Key::new("p", "r"));
    if !store.capabilities().has(Capability::Fencing) {
        return;
    }
    let old = ok(store.put_fenced(key, "old", FencingToken::new(3)).await);
    ok(store.put_fenced(key, "new", FencingToken::new(5)).await);
    let late = PutOptions::new().when(Precondition::Version(old)).fence(FencingToken::new(3));
    let late = fixture.other().put(key, "late".into(), late).await;
    assert!(matches!(late, Err(StoreError::Fenced { write: 0, .. })), "{late:?}");
}
