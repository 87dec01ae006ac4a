//! Scans, page by page.
use super::*;

// Guarantee: store 3.
/// Whole partition, prefix, ranges; up and down; by the order of bytes.
pub async fn a_scan_gives_the_rows_asked_for_in_order(fixture: &Fixture<dyn Store>) {
    let store = fixture.port();
    let all = ["A", "a", "a/1", "a/2", "ab", "b", "é", "日", "\u{10ffff}"];
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
    assert_eq!(rows(store, scan().range(Bound::Unbounded, Bound::Excluded(text("a")))).await, ["A"]);
    assert_eq!(rows(store, scan().range(Bound::Included(text("日")), Bound::Unbounded)).await, ["日", "\u{10ffff}"]);
    let (b, a) = (Bound::Included(text("b")), Bound::Included(text("a")));
    assert_eq!(rows(store, scan().range(b, a)).await, [""; 0], "upside down: nothing");
    assert!(is_invalid(store.scan(&scan().limit(0)).await));
    let page = ok(store.scan(&scan()).await);
    assert!(page.rows.iter().all(|row| row.value == row.row.as_bytes()), "with their values");
}

// Guarantee: store 3.
/// Page by page, in both directions and with every page size, each row comes once.
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
/// Rows inserted behind the token do not appear, rows ahead of it do; a row that was deleted meanwhile is no stop.
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
        let last = page.rows[1].row.clone();
        ok(store.delete(Key::new("p", &last), DeleteOptions::new()).await);
        // As text, through another process.
        let token = page.next.unwrap_or_else(|| panic!("more follows")).as_str().to_owned();
        let rest = rows(fixture.other(), scan.after(Continuation::from(token)).limit(2)).await;
        assert_eq!(rest, expected);
        for row in [behind, ahead] {
            ok(store.delete(Key::new("p", row), DeleteOptions::new()).await);
        }
        ok(store.insert(Key::new("p", &last), "x").await);
    }
}

// Guarantee: store 3.
/// A token of another scan gives no row that this one did not ask for.
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
