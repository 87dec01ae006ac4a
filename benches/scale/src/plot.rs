//! Plots with two logarithmic axes, as SVG.
use std::fmt::Write;

use crate::table::grouped;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Plot {
    pub title: String,
    /// The name of the x axis.
    pub x: String,
    pub lines: Vec<Line>,
}

const COLOURS: [&str; 10] =
    ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"];
/// Left, top, width and height of the area of the lines.
const AREA: (f64, f64, f64, f64) = (70.0, 40.0, 400.0, 280.0);

impl Plot {
    /// Returns the picture. A line ends at its first value below 1.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points).filter(|point| point.1 >= 1.0);
        let decades = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
            let (low, high) = (low.log10().floor(), high.log10().ceil());
            if low.is_finite() && high.is_finite() { (low, high.max(low + 1.0)) } else { (0.0, 1.0) }
        };
        let (x_low, x_high) = decades(&mut points().map(|point| point.0));
        let (y_low, y_high) = decades(&mut points().map(|point| point.1));
        let (left, top, width, height) = AREA;
        let x_of = |x: f64| left + (x.log10() - x_low) / (x_high - x_low) * width;
        let y_of = |y: f64| top + height - (y.log10() - y_low) / (y_high - y_low) * height;
        let mut svg = String::new();
        let mut add = |text: String| svg.push_str(&(text + "\n"));
        add(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 370" font-family="sans-serif" font-size="11">"#
                .into(),
        );
        add(r#"<rect width="720" height="370" fill="white"/>"#.into());
        add(format!(r#"<text x="{left}" y="22" font-size="14">{}</text>"#, self.title));
        for decade in x_low as i32..=x_high as i32 {
            let (value, bottom) = (10f64.powi(decade), top + height);
            let x = x_of(value);
            add(format!(r##"<line x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{bottom}" stroke="#ddd"/>"##));
            add(format!(r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#, bottom + 15.0, grouped(value)));
        }
        for decade in y_low as i32..=y_high as i32 {
            let (y, right) = (y_of(10f64.powi(decade)), left + width);
            add(format!(r##"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#ddd"/>"##));
            add(format!(
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end">10<tspan dy="-4" font-size="8">{decade}</tspan></text>"#,
                left - 6.0,
                y + 4.0
            ));
        }
        add(format!(r#"<text x="{:.1}" y="{:.1}">{}</text>"#, left + width / 2.0, top + height + 32.0, self.x));
        for (at, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let mut path = String::new();
            for (x, y) in line.points.iter().take_while(|point| point.1 >= 1.0) {
                let _ = write!(path, "{:.1},{:.1} ", x_of(*x), y_of(*y));
            }
            let y = top + 8.0 + 18.0 * at as f64;
            let is_empty = path.is_empty();
            add(format!(r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, path.trim_end()));
            add(format!(r#"<rect x="490" y="{:.1}" width="12" height="3" fill="{colour}"/>"#, y - 5.0));
            let none = if is_empty { " (none)" } else { "" };
            add(format!(r#"<text x="508" y="{y:.1}">{}{none}</text>"#, line.name));
        }
        add("</svg>".into());
        svg
    }
}
