//! Depth, tasks and requests over time, as SVG.
use std::fmt::{self, Write};

/// State at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) depth: u64,
    pub(crate) tasks: u64,
    pub(crate) requests: u64,
}

/// A band of the plot: its title with the unit, its colour, and its values.
type Band = (&'static str, &'static str, fn(&Sample) -> u64);

const BANDS: [Band; 3] = [
    ("items that wait in the queue", "#1f77b4", |sample| sample.depth),
    ("tasks that handle items", "#2ca02c", |sample| sample.tasks),
    ("requests to the queue so far", "#d62728", |sample| sample.requests),
];

const WIDTH: f64 = 900.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
/// Distance of the bands, and height of a band's axis.
const PITCH: f64 = 165.0;
const BAND: f64 = 120.0;
const HEIGHT: f64 = TOP + PITCH * 3.0 + 24.0;
const GRID: &str = "#dfe3e8";
const FAINT: &str = "#66727f";

/// Draws a run.
pub(crate) fn draw(title: &str, samples: &[Sample]) -> String {
    let mut svg = String::new();
    // Writing to a `String` does not fail.
    let _ = write(&mut svg, title, samples);
    svg
}

fn write(out: &mut impl Write, title: &str, samples: &[Sample]) -> fmt::Result {
    let end = samples.last().map_or(1.0, |last| last.seconds).max(0.001);
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - RIGHT);
    writeln!(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='system-ui, sans-serif' font-size='12'>\n\
         <title>{title}</title>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='{LEFT}' y='26' font-size='17' font-weight='600'>{title}</text>"
    )?;
    for (at, (name, colour, of)) in BANDS.into_iter().enumerate() {
        let top = TOP + PITCH * at as f64;
        let most = nice(samples.iter().map(of).max().unwrap_or(0));
        let y = |n: f64| top + BAND * (1.0 - n / most as f64);
        writeln!(out, "<text x='{LEFT}' y='{}' font-weight='600'>{name}</text>", top - 9.0)?;
        for tick in [0, most / 2, most] {
            let y = y(tick as f64);
            writeln!(out, "<line x1='{LEFT}' x2='{}' y1='{y:.1}' y2='{y:.1}' stroke='{GRID}'/>", WIDTH - RIGHT)?;
            label(out, LEFT - 8.0, y + 4.0, "end", &tick.to_string())?;
        }
        let points: Vec<_> =
            samples.iter().map(|sample| format!("{:.1},{:.1}", x(sample.seconds), y(of(sample) as f64))).collect();
        writeln!(out, "<polyline fill='none' stroke='{colour}' stroke-width='1.6' points='{}'/>", points.join(" "))?;
        for tick in ticks(end) {
            label(out, x(tick), top + BAND + 16.0, "middle", &format!("{tick} s"))?;
        }
    }
    writeln!(out, "</svg>")
}

fn label(out: &mut impl Write, x: f64, y: f64, anchor: &str, text: &str) -> fmt::Result {
    writeln!(out, "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='{FAINT}' font-size='11'>{text}</text>")
}

/// Labels of the time axis: round values, twelve at most.
fn ticks(end: f64) -> impl Iterator<Item = f64> {
    let unit = 10_f64.powf((end / 12.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * unit).find(|step| end / step <= 12.0).unwrap_or(end);
    // Rounded, because 3 * 0.1 would print as 0.30000000000000004.
    (0..=(end / step) as u32).map(move |n| (f64::from(n) * step * 1e4).round() / 1e4)
}

/// Returns the next even number of one digit and zeros, so that its half is round, too.
fn nice(n: u64) -> u64 {
    let unit = 10_u64.pow(n.max(2).ilog10());
    [2, 4, 6, 8, 10].into_iter().map(|f| f * unit).find(|top| *top >= n).unwrap_or(n.saturating_add(n % 2))
}
