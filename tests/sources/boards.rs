//! The board and the alerts name metrics, labels and values that exist.
use std::collections::{BTreeMap, BTreeSet};

use crate::sources::texts;

/// Labels that Prometheus adds, that each series has, and that distributions have.
const COMMON: [&str; 5] = ["job", "instance", "name", "quantile", "le"];

/// The labels of each metric, by the table of the page. A distribution also has the series that exporters derive from it.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics = BTreeMap::new();
    for row in include_str!("../../src/wings/metrics/table.md").lines().skip(2) {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let labels = cells[3].split(", ").map(|label| label.trim_matches('`').to_owned()).collect::<BTreeSet<_>>();
        let derived: &[&str] =
            if cells[2].starts_with("histogram") { &["", "_bucket", "_sum", "_count"] } else { &[""] };
        metrics.extend(derived.iter().map(|end| (format!("{}{end}", cells[1]), labels.clone())));
    }
    metrics
}

/// The queries of the board with their legends, and the expressions of the alerts with their annotations.
fn queries() -> Vec<(String, String)> {
    let board: serde_json::Value = serde_json::from_str(include_str!("../../docs/grafana/steadfast.json")).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let text = |target: &serde_json::Value, key: &str| target[key].as_str().unwrap().to_owned();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut queries: Vec<_> = targets.map(|target| (text(target, "expr"), text(target, "legendFormat"))).collect();
    let alerts = include_str!("../../docs/prometheus/alerts.yaml").split("- alert: ").skip(1);
    queries.extend(alerts.map(|alert| {
        let (expr, rest) = alert.split_once("expr:").unwrap().1.split_once("for:").unwrap();
        (expr.to_owned(), rest.to_owned())
    }));
    queries
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())]
}

/// What of a query and its legend is not in the crate.
fn wrong(
    query: &str,
    legend: &str,
    metrics: &BTreeMap<String, BTreeSet<String>>,
    is_value: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let (mut found, mut all) = (Vec::new(), BTreeSet::from(COMMON.map(str::to_owned)));
    for (at, _) in query.match_indices("steadfast_") {
        let name = word(&query[at..]);
        let Some(labels) = metrics.get(name) else {
            found.push(format!("no metric {name}"));
            continue;
        };
        all.extend(labels.iter().cloned());
        let matchers = query[at + name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for matcher in
            matchers.map_or("", |(inside, _)| inside).split(',').map(str::trim).filter(|matcher| !matcher.is_empty())
        {
            let label = word(matcher);
            if !labels.contains(label) && !COMMON.contains(&label) {
                found.push(format!("{name} has no label {label}"));
            }
            let values = matcher[label.len()..].trim_start_matches(['=', '~', '!']).trim_matches('"').split('|');
            let of_ours = values.filter(|value| labels.contains(label) && !is_value(value));
            found.extend(of_ours.map(|value| format!("{name}: {label} is never {value}")));
        }
    }
    let lists = query.split("by (").skip(1).chain(query.split("on (").skip(1));
    let grouped = lists.flat_map(|rest| rest.split(')').next().unwrap_or("").split(", "));
    let named = legend.split("{{").skip(1).map(|rest| word(rest.trim().trim_start_matches("$labels.")));
    let labels = grouped.chain(named).filter(|label| !label.is_empty() && !all.contains(*label));
    found.extend(labels.map(|label| format!("no label {label} in {query}")));
    found
}

#[test]
fn the_board_and_the_alerts_name_metrics_and_labels_that_exist() {
    let (metrics, sources, queries) = (metrics(), texts(), queries());
    assert!(metrics.len() > 100 && queries.len() > 70, "{} metrics, {} queries", metrics.len(), queries.len());
    let is_value = |value: &str| sources.iter().any(|(_, text)| text.contains(&format!("\"{value}\"")));
    let found: Vec<_> = queries.iter().flat_map(|(query, legend)| wrong(query, legend, &metrics, &is_value)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_check_of_the_board_finds_what_it_is_for() {
    let metrics = metrics();
    let wrong = |query, legend| wrong(query, legend, &metrics, &|value| value == "open").len();
    assert_eq!(
        wrong("steadfast_circuit_breaker_state{state=\"open\", job=~\"$job\"}", "{{name}} {{ $labels.state }}"),
        0
    );
    assert_eq!(wrong("sum by (name, state) (steadfast_circuit_breaker_keys) > 0", "{{ $value | humanize }}"), 0);
    assert_eq!(wrong("steadfast_circuit_breaker_status", ""), 1);
    assert_eq!(wrong("steadfast_circuit_breaker_state{rule=\"open\"}", ""), 1);
    assert_eq!(wrong("steadfast_circuit_breaker_state{state=~\"open|opened\"}", ""), 1);
    assert_eq!(wrong("sum by (rule) (steadfast_circuit_breaker_state)", ""), 1);
    assert_eq!(wrong("steadfast_circuit_breaker_state", "{{rule}}"), 1);
}
