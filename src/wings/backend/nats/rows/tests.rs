//! Rows as tokens and filters, against a naive model of a server.
use std::{
    collections::BTreeSet,
    ops::Bound::{self, Excluded, Included, Unbounded},
};

use proptest::{prelude::*, sample::select};

use super::*;
use crate::store::Continuation;

/// Returns `true` if a filter matches a subject, as a server does it.
fn matches(filter: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for token in filter.split('.') {
        match (token, subject.next()) {
            (">", rest) => return rest.is_some(),
            ("*", Some(_)) => {}
            (token, found) if found == Some(token) => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

/// Rows of groups that begin alike, with numbers and with what looks like one.
fn any_row() -> impl Strategy<Value = String> {
    let group = select(vec!["", "e/", "e/a", "e", "h/", "log/", "日/", "-/", "e/0"]);
    let small = prop_oneof![0_u64..300, 0_u64..70_000, any::<u64>()];
    let rest = prop_oneof![
        small.clone().prop_map(|number| format!("{number:016x}")),
        small.prop_map(|number| format!("{number:020}")),
        "[0-9a-g/.日]{0,4}".prop_map(|text| text),
        "0{13,16}[0-9a-f]{3,5}".prop_map(|text| text),
        "9{20}|f{16}|F{16}|0{20}|0{16}".prop_map(|text| text),
    ];
    (group, rest)
        .prop_map(|(group, rest)| format!("{group}{rest}"))
        .prop_filter("no row is empty", |row| !row.is_empty())
}

fn any_bound() -> impl Strategy<Value = Bound<String>> {
    prop_oneof![any_row().prop_map(Included), any_row().prop_map(Excluded), Just(Unbounded)]
}

fn any_scan() -> impl Strategy<Value = Scan> {
    let prefix = prop_oneof![select(vec!["e", "e/", "h/", "log/", "l", ""]).prop_map(str::to_owned), any_row()];
    let rows = prop_oneof![
        prefix.prop_map(Rows::Prefix),
        (any_bound(), any_bound()).prop_map(|(from, to)| Rows::Range(from, to)),
        (0_u64..70_000)
            .prop_map(|from| Rows::Range(Included(format!("e/{from:016x}")), Included(format!("e/{:016x}", u64::MAX)))),
    ];
    let after = proptest::option::of(any_row());
    (rows, any::<bool>(), after).prop_map(|(rows, is_descending, after)| {
        let mut scan = Scan::partition("p");
        scan.rows = rows;
        scan.order = if is_descending { Order::Descending } else { Order::Ascending };
        scan.after = after.map(Continuation::behind);
        scan
    })
}

fn is_within(scan: &Scan, row: &str) -> bool {
    let (from, to) = scan.bounds();
    std::ops::RangeBounds::<str>::contains(&(from, to.as_ref().map(String::as_str)), row)
}

#[test]
fn the_tokens_of_rows_are_as_documented() {
    for (row, expected) in [
        ("h", "h.%.h"),
        ("order-7", "o.%.order-7"),
        ("0000000000000a42", "0.%.0000000000000a42"),
        ("h/", "h.h/.%"),
        ("h/a", "h.h/.a"),
        ("e/0000000000000a42", "e.e/.x.3.a.4.2"),
        ("e/0000000000000A42", "e.e/.0000000000000A42"),
        ("e/0000000000000000", "e.e/.x.0"),
        ("log/00000000000000000042", "l.log/.d.2.4.2"),
        ("log/99999999999999999999", "l.log/.d.20.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9.9"),
        ("a/b/00000000000000000042", "a.a/.b/00000000000000000042"),
        (".", "%2E.%.%2E"),
    ] {
        assert_eq!(tokens(row), expected);
        assert_eq!(super::row(expected).as_deref(), Some(row));
    }
    for other in ["", "=", "=.a", "a.%", "a.a/.y.1.1", "a.a/.x.17.1", "a.a/.x.-1"] {
        assert!(super::row(other).is_none_or(|row| tokens(&row) != other), "{other}");
    }
}

#[test]
fn the_longest_rows_fit_into_a_line_of_the_protocol() {
    for (group, rest) in [(0, 1024), (233, 790), (1023, 0), (512, 511), (700, 323)] {
        for character in ["x", " ", "\u{ff}", "日", "\u{10ffff}"] {
            let some = |bytes: usize| character.repeat(bytes / character.len());
            let row = format!("{}{}{}", some(group), if group > 0 { "/" } else { "" }, some(rest));
            let tokens = tokens(&row);
            assert!(tokens.len() < 1_800, "{}", tokens.len());
            assert_eq!(super::row(&tokens), Some(row));
        }
    }
}

proptest! {
    #[test]
    fn tokens_of_any_rows_are_apart_and_come_back(rows in proptest::collection::btree_set(any_row(), 1..20)) {
        let all: BTreeSet<String> = rows.iter().map(|row| tokens(row)).collect();
        prop_assert_eq!(all.len(), rows.len());
        prop_assert!(rows.iter().all(|row| super::row(&tokens(row)).as_ref() == Some(row)));
    }

    #[test]
    fn the_filters_of_a_scan_match_all_of_its_rows_up_to_the_cut(
        rows in proptest::collection::btree_set(any_row(), 1..60),
        scan in any_scan(),
        span in proptest::option::of(1_u128..5_000),
    ) {
        let area = Area::of(&scan);
        for row in rows.iter().filter(|row| is_within(&scan, row)) {
            prop_assert!(matches(&area.filter(), &tokens(row)), "{} of {area:?}", row);
        }
        if let Area::Group(group) = area {
            let (filters, cut) = group.filters(span);
            // The last row that is matched is one of them.
            for row in rows.iter().chain(&cut) {
                let matching = filters.iter().filter(|filter| matches(filter, &tokens(row))).count();
                let is_read = match (&cut, scan.order) {
                    (None, _) => true,
                    (Some(cut), Order::Ascending) => row <= cut,
                    (Some(cut), Order::Descending) => row >= cut,
                };
                prop_assert!(matching <= 1, "{} is matched twice by {filters:?}", row);
                if is_within(&scan, row) && is_read {
                    prop_assert_eq!(matching, 1, "{} of {:?} up to {:?}", row, filters, cut);
                }
                let (name, rest) = super::split(row);
                let is_exact = span.is_some() || !group.is_numbered;
                if is_exact && matching == 1 && name == group.name && FORMS.iter().any(|form| form.parse(rest).is_some()) {
                    prop_assert!(is_within(&scan, row), "{} is not in the range", row);
                }
            }
        }
    }

    /// The rows are those of a partition of which the first ones may be deleted.
    #[test]
    fn a_page_of_numbers_is_found_by_few_requests_and_reads_little_more_than_it_returns(
        first in 0_u64..100_000,
        gap in 1_u64..400,
        count in 0_u64..3_000,
        from in 0_u64..120_000,
        limit in 1_usize..100,
        is_descending: bool,
    ) {
        let rows: BTreeSet<u64> = (0..count).map(|i| first + i * gap).collect();
        let (low, high) = if is_descending { (0, from) } else { (from, u64::MAX) };
        let row = |number: u64| format!("e/{number:016x}");
        let mut scan = Scan::partition("p").range(Included(row(low)), Included(row(high)));
        if is_descending {
            scan = scan.descending();
        }
        let Area::Group(group) = Area::of(&scan) else { panic!("a group") };
        prop_assert!(group.is_numbered);
        let (mut stride, mut requests, mut read, mut size) = (Stride::new(limit, &group), 0, 0, 0);
        let page = loop {
            let (filters, cut) = group.filters(stride.span);
            requests += 1;
            size += filters.len();
            let cut = cut.map(|cut| u64::from_str_radix(&cut[2..18], 16).unwrap());
            let range = match (cut, is_descending) {
                (None, _) => low..=high,
                (Some(cut), true) => cut..=high,
                (Some(cut), false) => low..=cut,
            };
            let found = rows.range(range).count();
            let is_much = found > limit * 4;
            read += if found > 1024 { 0 } else { found.min(limit * 4) };
            if !is_much && (cut.is_none() || found >= limit) {
                break Some(found.min(limit));
            }
            if !stride.advance((!is_much).then_some(found)) {
                break None;
            }
        };
        prop_assert!(requests <= 12, "{requests} requests");
        prop_assert!(size <= 1_200, "{size} filters");
        prop_assert!(read <= limit * 20, "{read} rows are read for {limit}");
        prop_assert!(page.is_none_or(|page| page <= limit));
    }
}
