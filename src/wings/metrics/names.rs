//! The table of all metrics, read from the page: name, kind, unit, labels, description. A test
//! compares it with what is registered.
use ::metrics::Unit;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// One metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Series {
    /// Metric name.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: MetricKind,
    /// Unit of the values, if they have one.
    pub unit: Option<Unit>,
    /// Labels beside `name`, as the table has them.
    pub labels: &'static str,
    /// Description, as registered with the recorder.
    pub description: &'static str,
}

/// Returns all metric families, in the order of the table.
pub fn series() -> impl Iterator<Item = Series> {
    include_str!("table.md").lines().filter_map(row)
}

/// Reads a row of the table. Its head is none.
fn row(row: &'static str) -> Option<Series> {
    let mut cells = row.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
    let (name, kind, labels, description) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
    let (kind, unit) = match kind.split_once(", s") {
        Some((kind, _)) => (kind, Some(Unit::Seconds)),
        None => (kind, None),
    };
    let kind = match kind {
        "counter" => MetricKind::Counter,
        "gauge" => MetricKind::Gauge,
        "histogram" => MetricKind::Histogram,
        _ => return None,
    };
    Some(Series { name, kind, unit, labels, description })
}
