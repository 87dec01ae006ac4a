//! Depth, tasks and requests over time, as SVG.
use std::{fmt::Write as _, path::Path};

use crate::Result;

/// How things stood at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) depth: u64,
    pub(crate) tasks: u64,
    pub(crate) requests: u64,
}

/// Its name, its colour, and what it shows.
type Band = (&'static str, &'static str, fn(&Sample) -> u64);

const WIDTH: f64 = 900.0;
const BAND: f64 = 150.0;
const LEFT: f64 = 90.0;

pub(crate) fn draw(samples: &[Sample], path: &Path) -> Result<()> {
    let end = samples.last().map_or(1.0, |last| last.seconds).max(0.001);
    let height = BAND * 3.0 + 60.0;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n"
    );
    let bands: [Band; 3] = [
        ("depth", "#1f77b4", |sample| sample.depth),
        ("tasks", "#2ca02c", |sample| sample.tasks),
        ("requests", "#d62728", |sample| sample.requests),
    ];
    for (band, (name, colour, of)) in bands.into_iter().enumerate() {
        let (top, most) = (20.0 + band as f64 * (BAND + 5.0), samples.iter().map(of).max().unwrap_or(0).max(1));
        let points = samples.iter().fold(String::new(), |mut points, sample| {
            let x = LEFT + sample.seconds / end * (WIDTH - LEFT - 20.0);
            let y = top + BAND - 10.0 - of(sample) as f64 / most as f64 * (BAND - 30.0);
            let _ = write!(points, "{x:.1},{y:.1} ");
            points
        });
        writeln!(svg, "<text x='5' y='{}'>{name}</text><text x='5' y='{}'>max {most}</text>", top + 30.0, top + 46.0)?;
        writeln!(svg, "<line x1='{LEFT}' y1='{0}' x2='{1}' y2='{0}' stroke='#ccc'/>", top + BAND - 10.0, WIDTH - 20.0)?;
        writeln!(svg, "<polyline fill='none' stroke='{colour}' points='{}'/>", points.trim_end())?;
    }
    writeln!(
        svg,
        "<text x='{LEFT}' y='{}'>0 s</text><text x='{}' y='{}'>{end:.1} s</text>",
        height - 8.0,
        WIDTH - 60.0,
        height - 8.0
    )?;
    svg.push_str("</svg>\n");
    Ok(std::fs::write(path, svg)?)
}
