//! Scans, page by page.
use super::*;

// Guarantee: store 3.
/// Scans of a partition, a prefix and ranges return rows in the order of bytes, ascending and
/// descending.
pub async fn a_scan_gives_the_rows_asked_for_in_order(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let all = ["A", "B", "a", "a/1", "a/2", "ab", "b", "é", "日", "\u{10ffff}"];
    for row in all.iter().rev() {
        ok(store.insert(Key::new("p", row), row.to_string()).await);
        ok(store.insert(Key::new("pp", row), "another partition").await);
    }
    let scan = || Scan::partition("p");
    assert_eq!(rows(store, scan()).await, all);
    let down: Vec<&str> = all.iter().rev().copied().collect();
    assert_eq!(rows(fixture.other(), scan().descending()).await, down);
    assert_eq!(rows(store, scan().prefix("a")).await, ["a", "a/1", "a/2", "ab"]);
    assert_eq!(rows(store, scan().prefix("a/").descending()).await, ["a/2", "a/1"]);
    assert_eq!(rows(store, scan().prefix("\u{10ffff}")).await, ["\u{10ffff}"]);
    assert_eq!(rows(store, scan().prefix("")).await, all);
    assert_eq!(rows(store, scan().prefix("zzz")).await, [""; 0]);
    let text = |row: &str| row.to_owned();
    let (a, b) = (Bound::Included(text("a")), Bound::Excluded(text("b")));
    assert_eq!(rows(store, scan().range(a, b)).await, ["a", "a/1", "a/2", "ab"]);
    let (a, b) = (Bound::Excluded(text("a")), Bound::Included(text("b")));
    assert_eq!(rows(store, scan().range(a, b)).await, ["a/1", "a/2", "ab", "b"]);
    assert_eq!(rows(store, scan().range(Bound::Unbounded, Bound::Excluded(text("a")))).await, ["A", "B"]);
    assert_eq!(rows(store, scan().range(Bound::Included(text("日")), Bound::Unbounded)).await, ["日", "\u{10ffff}"]);
    let (b, a) = (Bound::Included(text("b")), Bound::Included(text("a")));
    assert_eq!(rows(store, scan().range(b, a)).await, [""; 0], "upside down: nothing");
    refused(store.scan(&scan().limit(0)).await, "limit");
    for row in ok(store.scan(&scan()).await).rows {
        let read = ok(store.get(Key::new("p", &row.row)).await);
        assert_eq!(read, Some(Record::new(row.value.clone(), row.version)), "{row:?}");
        assert_eq!(row.value, row.row.as_bytes());
    }
}

// Guarantee: store 3.
/// Each row is returned once, in both directions and with every page size.
pub async fn pages_miss_nothing_and_double_nothing(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let mut all: Vec<String> = (0..23).map(|i| format!("row {i:02}")).collect();
    for row in &all {
        ok(store.insert(Key::new("p", row), "x").await);
    }
    for limit in [1, 2, 7, 22, 23, 24] {
        assert_eq!(rows(store, Scan::partition("p").limit(limit)).await, all);
        let page = ok(store.scan(&Scan::partition("p").limit(limit)).await);
        assert!(page.rows.len() <= limit);
    }
    all.reverse();
    assert_eq!(rows(store, Scan::partition("p").limit(5).descending()).await, all);
    let last = ok(store.scan(&Scan::partition("p").limit(23)).await);
    assert_eq!(last.next, None, "nothing follows");
}

// Guarantee: store 3.
/// Prefixes and bounds are plain text; characters that are special in a query are not.
pub async fn a_prefix_is_plain_text(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let all = ["%", "*", "?", "[a]", "\\", "_", "a%b", "a*b", "a\\b", "a_b", "axb", "b", "{a}"];
    for row in all {
        ok(store.insert(Key::new("p", row), "x").await);
    }
    for prefix in ["%", "*", "?", "[", "[a", "\\", "_", "a", "a%", "a*", "a\\", "a_", "{"] {
        let expected: Vec<&str> = all.into_iter().filter(|row| row.starts_with(prefix)).collect();
        assert_eq!(rows(store, Scan::partition("p").prefix(prefix)).await, expected, "{prefix}");
        assert_eq!(rows(fixture.other(), Scan::partition("p").prefix(prefix).limit(1)).await, expected, "{prefix}");
    }
}

// Guarantee: store 3.
/// Rows inserted behind the token do not appear, rows ahead of it do; a row deleted in between does
/// not stop the scan.
pub async fn rows_inserted_behind_the_token_stay_away_and_ahead_appear(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    for row in ["b", "d", "f", "h"] {
        ok(store.insert(Key::new("p", row), "x").await);
    }
    for (descending, behind, ahead, expected) in
        [(false, "a", "g", vec!["f", "g", "h"]), (true, "i", "c", vec!["d", "c", "b"])]
    {
        let scan = Scan::partition("p").limit(2);
        let scan = if descending { scan.descending() } else { scan };
        let page = ok(store.scan(&scan).await);
        ok(store.insert(Key::new("p", behind), "x").await);
        ok(store.insert(Key::new("p", ahead), "x").await);
        // The token travels as text to another process.
        let token = page.next.unwrap_or_else(|| panic!("more follows")).as_str().to_owned();
        let rest = || rows(fixture.other(), scan.clone().after(Continuation::from(token.clone())));
        assert_eq!(rest().await, expected, "a row was inserted behind the token");
        ok(store.delete(Key::new("p", behind), DeleteOptions::new()).await);
        let [first, last] = [&page.rows[0].row, &page.rows[1].row];
        for row in [last, first] {
            ok(store.delete(Key::new("p", row), DeleteOptions::new()).await);
            assert_eq!(rest().await, expected, "rows behind the token were deleted, also the last one of the page");
        }
        ok(store.delete(Key::new("p", ahead), DeleteOptions::new()).await);
        for row in [first, last] {
            ok(store.insert(Key::new("p", row), "x").await);
        }
    }
}

// Guarantee: store 3.
/// A token of another scan returns no row outside of this scan.
pub async fn a_token_never_widens_a_scan(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    for row in ["a", "b1", "b2", "c"] {
        ok(store.insert(Key::new("p", row), "x").await);
    }
    for token in ["", "a", "b", "zzz", "\u{0}"] {
        let after = |scan: Scan| scan.after(Continuation::from(token.to_owned()));
        for scan in [Scan::partition("p").prefix("b"), Scan::partition("p").prefix("b").descending()] {
            let found = rows(store, after(scan)).await;
            assert!(found.iter().all(|row| row.starts_with('b')), "{token:?}: {found:?}");
        }
    }
}
