//! Appends to sequences.
use super::*;
use crate::store::{Row, Sequence};

const LOG: Sequence<'static> = Sequence::new("log/");

fn can_append(store: &dyn Store) -> bool {
    store.capabilities().has(Capability::OrderedAppend)
}

/// Appends one value, and returns its number.
async fn append(store: &dyn Store, sequence: &str, value: &str) -> u64 {
    let done = ok(store.batch("p", vec![Write::append(sequence, value.to_owned())]).await);
    done[0].unwrap_or_else(|| panic!("an append has a number")).as_u64()
}

/// Returns the numbers and values of a sequence in order.
async fn numbered(store: &dyn Store, sequence: Sequence<'_>) -> Vec<(u64, String)> {
    let rows = ok(store.scan_all(Scan::partition("p").sequence(sequence, 0)).await);
    let number = |row: Row| Some((sequence.number(&row.row)?, String::from_utf8_lossy(&row.value).into_owned()));
    rows.into_iter().filter_map(number).collect()
}

fn text(values: &[(u64, &str)]) -> Vec<(u64, String)> {
    values.iter().map(|(number, value)| (*number, (*value).to_owned())).collect()
}

// Guarantee: store 10.
/// Appends take the numbers from 1, also several in a batch; the number is in the answer, the row's
/// key and its version.
pub async fn an_append_takes_the_next_number_and_answers_with_it(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let first = store.batch("p", vec![Write::append("log/", "a")]).await;
    if !can_append(store) {
        return assert!(is_unsupported(first));
    }
    assert!(store.capabilities().has(Capability::AtomicBatch), "appends are writes of a batch");
    assert_eq!(ok(first), [Some(Version::new(1))]);
    let writes = vec![
        Write::append_after("log/", "b", 1),
        Write::put("other", "x", Precondition::Any),
        Write::append("audit/", "first"),
        Write::append("log/", "c"),
        Write::check_row("absent", Precondition::Absent),
        Write::append("log/", ""),
    ];
    let done = ok(fixture.other().batch("p", writes).await);
    let numbers: Vec<_> = done.iter().map(|version| version.map(Version::as_u64)).collect();
    assert!(matches!(numbers[..], [Some(2), Some(_), Some(1), Some(3), None, Some(4)]), "{numbers:?}");
    assert_eq!(numbered(store, LOG).await, text(&[(1, "a"), (2, "b"), (3, "c"), (4, "")]));
    let third = ok(store.get(Key::new("p", "log/00000000000000000003")).await);
    assert_eq!(third, Some(Record::new("c".into(), Version::new(3))));
    // Each partition has sequences of its own.
    assert_eq!(ok(store.batch("q", vec![Write::append("log/", "x")]).await), [Some(Version::new(1))]);
}

// Guarantee: store 12.
/// Of concurrent appends behind one number one wins; each other one is a conflict with the last
/// number.
pub async fn of_many_appends_behind_one_number_one_wins(fixture: &Fixture<dyn Store>) {
    if !can_append(fixture.port()) {
        return;
    }
    for last in 0..5 {
        let append = |i: u64| {
            let store = if i.is_multiple_of(2) { fixture.shared() } else { fixture.shared_other() };
            let writes = vec![
                Write::put(format!("by {last} {i}"), "x", Precondition::Any),
                Write::append_after("log/", i.to_string(), last),
            ];
            tokio::spawn(async move { store.batch("p", writes).await })
        };
        let mut won = Vec::new();
        for (i, append) in (0..16).map(append).collect::<Vec<_>>().into_iter().enumerate() {
            match append.await.unwrap_or_else(|e| panic!("an append failed: {e}")) {
                Ok(done) => won.push((i, done[1])),
                Err(StoreError::Conflict { write: 1, current: Some(now) }) if now.as_u64() == last + 1 => {}
                Err(error) => panic!("neither appended nor refused: {error:?}"),
            }
        }
        assert!(matches!(won[..], [(_, Some(number))] if number.as_u64() == last + 1), "{won:?}");
        assert_eq!(numbered(fixture.other(), LOG).await.last(), Some(&(last + 1, won[0].0.to_string())));
    }
    // Before the first append there is no last number.
    let none = fixture.port().batch("p", vec![Write::append_after("new/", "x", 1)]).await;
    assert!(matches!(none, Err(StoreError::Conflict { write: 0, current: None })), "{none:?}");
    assert_eq!(rows(fixture.port(), Scan::partition("p").prefix("by ")).await.len(), 5, "losers wrote nothing");
}

// Guarantee: store 10.
/// A batch that is refused takes no number, whichever of its writes is at fault.
pub async fn a_refused_batch_takes_no_number(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !can_append(store) {
        return;
    }
    let stale = Write::put("stale", "x", Precondition::Version(Version::new(1)));
    for writes in [
        vec![Write::append("log/", "x"), stale.clone()],
        vec![stale, Write::append("log/", "x")],
        vec![Write::append("log/", "x"), Write::append_after("other/", "x", 7)],
        vec![Write::append("log/", "x"), Write::check_row("absent", Precondition::Version(Version::new(1)))],
    ] {
        assert!(store.batch("p", writes).await.is_err_and(|error| error.is_conflict()));
    }
    assert_eq!(ok(store.scan(&Scan::partition("p")).await).rows, []);
    assert_eq!(append(fixture.other(), "log/", "a").await, 1);
}

// Guarantee: store 10.
/// After rows were deleted, the last one or all of them, numbers continue behind the last one.
pub async fn numbers_never_come_twice_also_after_all_rows_were_deleted(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !can_append(store) {
        return;
    }
    for number in 1..=3 {
        assert_eq!(append(store, "log/", "old").await, number);
    }
    assert!(ok(store.delete(Key::new("p", &LOG.row(3)), DeleteOptions::new()).await));
    assert_eq!(append(fixture.other(), "log/", "new").await, 4);
    assert_eq!(ok(store.delete_scanned(Scan::partition("p")).await), 3);
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
    let wrong = store.batch("p", vec![Write::append_after("log/", "x", 0)]).await;
    assert!(matches!(wrong, Err(StoreError::Conflict { current: Some(last), .. }) if last.as_u64() == 4), "{wrong:?}");
    assert_eq!(ok(store.batch("p", vec![Write::append_after("log/", "x", 4)]).await), [Some(Version::new(5))]);
    assert_eq!(numbered(fixture.other(), LOG).await, text(&[(5, "x")]));
}

// Guarantee: store 11.
/// Tasks on both handles append one and two at a time, and some of their batches are refused. A
/// reader that continues behind the last number that it saw finds each number in turn.
pub async fn a_reader_passes_no_number_that_appears_later(fixture: &Fixture<dyn Store>) {
    if !can_append(fixture.port()) {
        return;
    }
    const EACH: usize = 30;
    let appenders: Vec<_> = (0..8)
        .map(|i: usize| {
            let store = if i.is_multiple_of(2) { fixture.shared() } else { fixture.shared_other() };
            tokio::spawn(async move {
                for n in 0..EACH {
                    let append = |part: &str| Write::append("log/", format!("{i} {n} {part}"));
                    let refused =
                        vec![append("refused"), Write::check_row("absent", Precondition::Version(Version::new(1)))];
                    assert!(store.batch("p", refused).await.is_err_and(|error| error.is_conflict()));
                    let done = ok(store.batch("p", vec![append("a"), append("b")]).await);
                    let number = |at: usize| done[at].map(Version::as_u64);
                    assert_eq!(number(1), number(0).map(|first| first + 1), "{done:?}");
                }
            })
        })
        .collect();
    let (mut seen, mut values) = (0, BTreeSet::new());
    while seen < 8 * EACH as u64 * 2 {
        let page = ok(fixture.other().scan(&Scan::partition("p").sequence(LOG, seen).limit(7)).await);
        for row in page.rows {
            assert_eq!(LOG.number(&row.row), Some(seen + 1), "the reader has seen {seen}");
            assert_eq!(row.version.as_u64(), seen + 1);
            assert!(values.insert(row.value.clone()), "{:?} came twice", row.value);
            assert!(!row.value.ends_with(b"refused"));
            seen += 1;
        }
        let ended = appenders.iter().all(|appender| appender.is_finished());
        tokio::task::yield_now().await;
        if ended {
            let rest = ok(fixture.other().scan(&Scan::partition("p").sequence(LOG, seen).limit(1)).await);
            assert!(!rest.rows.is_empty() || seen == 8 * EACH as u64 * 2, "the appenders ended after {seen}");
        }
    }
    for appender in appenders {
        appender.await.unwrap_or_else(|e| panic!("an appender failed: {e}"));
    }
}

// Guarantee: store 10.
/// Sequences with names that begin alike have numbers and rows of their own.
pub async fn sequences_with_names_that_begin_alike_do_not_mix(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !can_append(store) {
        return;
    }
    let names = ["a", "a/", "a/0/", "a/1/", "a/00000000000000000001/", "ab", "A", "日"];
    for value in ["first", "second"] {
        for name in names {
            append(store, name, &format!("{name} {value}")).await;
        }
    }
    for name in names {
        let found = numbered(fixture.other(), Sequence::new(name)).await;
        assert_eq!(found, text(&[(1, &format!("{name} first")), (2, &format!("{name} second"))]));
    }
}

// Guarantee: store 13.
/// A put replaces a row of a sequence, and never creates one: neither ahead of the last number nor
/// in place of a deleted row.
pub async fn only_an_append_creates_a_row_of_a_sequence(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !can_append(store) {
        return;
    }
    for value in ["a", "b"] {
        append(store, "log/", value).await;
    }
    let [first, third, far] = [1, 3, 1000].map(|number| LOG.row(number));
    let replaced = ok(store.replace(Key::new("p", &first), "erased", Version::new(1)).await);
    assert!(replaced > Version::new(1));
    assert!(ok(store.delete(Key::new("p", &first), DeleteOptions::new()).await));
    for row in [&first, &third, &far, &LOG.row(0), "log/99999999999999999999"] {
        for when in [Precondition::Any, Precondition::Absent] {
            assert!(is_invalid(fixture.other().put(Key::new("p", row), "x".into(), when.into()).await));
        }
        let among = vec![Write::put("beside", "x", Precondition::Any), Write::put(row, "x", Precondition::Any)];
        assert!(is_invalid(store.batch("p", among).await));
        let stale = store.replace(Key::new("p", row), "x", Version::new(1)).await;
        assert!(matches!(stale, Err(StoreError::Conflict { current: None, .. })), "{stale:?}");
    }
    assert_eq!(numbered(store, LOG).await, text(&[(2, "b")]));
    // Other rows are free: of another length, of another partition, of a name without appends.
    for key in [Key::new("p", "log/7"), Key::new("q", &third), Key::new("p", "lo/00000000000000000001")] {
        ok(store.insert(key, "x").await);
    }
    assert_eq!(append(store, "log/", "c").await, 3);
}

// Guarantee: store 13.
/// The first append to a sequence is refused while a put's row of its form exists: no later append
/// can find its row taken.
pub async fn a_sequence_begins_only_where_no_put_left_a_row(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    if !can_append(store) {
        return;
    }
    let taken = LOG.row(7);
    ok(store.insert(Key::new("p", &taken), "by a put").await);
    ok(store.insert(Key::new("p", "log/7"), "of another form").await);
    ok(store.insert(Key::new("p", "log/700000000000000000007"), "of another form").await);
    let refused = store.batch("p", vec![Write::append("log/", "x")]).await;
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains(&taken)), "{refused:?}");
    assert!(is_invalid(refused));
    assert!(is_invalid(
        store.batch("p", vec![Write::put("b", "x", Precondition::Any), Write::append("log/", "x")]).await
    ));
    assert_eq!(value(store, Key::new("p", &taken)).await.as_deref(), Some("by a put"));
    assert_eq!(value(store, Key::new("p", "b")).await, None);
    assert!(ok(store.delete(Key::new("p", &taken), DeleteOptions::new()).await));
    if store.capabilities().has(Capability::TimeToLive) {
        let expires = LOG.row(2);
        // Servers on a busy machine answer late.
        let life = if fixture.is_on_manual_time() { a_while() } else { a_while() * 5 };
        ok(store.put(Key::new("p", &expires), "expires".into(), PutOptions::new().ttl(life)).await);
        assert!(is_invalid(fixture.other().batch("p", vec![Write::append("log/", "x")]).await));
        fixture.pass(life + a_while()).await;
    }
    for number in 1..=8 {
        assert_eq!(append(fixture.other(), "log/", "x").await, number);
    }
    let records = numbered(store, LOG).await;
    assert!(records.len() == 8 && records.iter().all(|(_, value)| value == "x"), "{records:?}");
}

// Guarantee: store 10.
/// Appends that violate a rule are refused before anything is written.
pub async fn an_invalid_append_is_refused(fixture: &Fixture<dyn Store>) {
    let (store, can) = (fixture.port(), fixture.port().capabilities());
    if !can_append(store) {
        return;
    }
    let append = |name: &str| Write::append(name, "x");
    let mut batches = vec![
        vec![append("")],
        vec![append("a1")],
        vec![append("a/00000000000000000001")],
        vec![append("b/"), append("a/"), Write::append_after("a/", "x", 1)],
        vec![append("a/"), Write::put("a/00000000000000000001", "x", Precondition::Any)],
        vec![Write::delete("a/00000000000000000009", Precondition::Any), append("a/")],
        vec![Write::check_row("a/00000000000000000009", Precondition::Absent), append("a/")],
    ];
    if can.max_key() < 1 << 20 {
        batches.push(vec![append(&noise(can.max_key() - 19))]);
        let longest = noise(can.max_key() - 20);
        assert_eq!(ok(store.batch("q", vec![append(&longest)]).await), [Some(Version::new(1))]);
        let row = Sequence::new(&longest).row(1);
        assert_eq!(value(fixture.other(), Key::new("q", &row)).await.as_deref(), Some("x"));
    }
    if can.max_value() < 1 << 30 {
        batches.push(vec![append("b/"), Write::append("a/", vec![0; can.max_value() + 1])]);
    }
    if can.max_batch() < 100_000 {
        batches.push((0..=can.max_batch()).map(|_| append("a/")).collect());
    }
    for batch in batches {
        assert!(is_invalid(store.batch("p", batch).await));
    }
    assert_eq!(rows(store, Scan::partition("p")).await, [""; 0]);
    let all = (0..can.max_batch().min(1000)).map(|_| append("a/")).collect();
    assert_eq!(ok(store.batch("p", all).await).len(), can.max_batch().min(1000));
}
