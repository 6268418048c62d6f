//! A plot of bus bandwidth over size, both logarithmic, as SVG.

use super::report::Row;
use crate::error::{Error, Result};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 8] =
    ["#1b6ca8", "#d1495b", "#2e8b57", "#8e5bb5", "#c77d0a", "#3f3f3f", "#00838f", "#a0522d"];

/// Draws one line per collective, library and place.
pub(super) fn write(path: &str, rows: &[Row]) -> Result<()> {
    std::fs::write(path, draw(rows))
        .map_err(|e| Error::File { path: path.to_owned(), cause: e.to_string() })
}

fn draw(rows: &[Row]) -> String {
    let usable: Vec<&Row> = rows.iter().filter(|r| r.bytes > 0 && r.busbw > 0.0).collect();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        if low < high { (low, high) } else { (low - 0.5, low + 0.5) }
    };
    let (x0, x1) = range(&mut usable.iter().map(|r| (r.bytes as f64).log2()));
    let (y0, y1) = range(&mut usable.iter().map(|r| r.busbw.log10()));
    let x = |bytes: f64| MARGIN + (bytes.log2() - x0) / (x1 - x0) * (WIDTH - 2.0 * MARGIN);
    let y = |bw: f64| HEIGHT - MARGIN - (bw.log10() - y0) / (y1 - y0) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    for power in x0.ceil() as i32..=x1.floor() as i32 {
        if power % 4 == 0 {
            let at = x(2f64.powi(power));
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {MARGIN} V{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - MARGIN,
                HEIGHT - MARGIN + 16.0,
                bytes_text(power)
            );
        }
    }
    for power in y0.ceil() as i32..=y1.floor() as i32 {
        let (value, at) = (10f64.powi(power), y(10f64.powi(power)));
        let _ = writeln!(
            svg,
            "<path d=\"M{MARGIN} {at:.1} H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{at:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - MARGIN,
            MARGIN - 6.0
        );
    }
    let mut names: Vec<(String, bool)> = Vec::new();
    for row in &usable {
        let name = (format!("{} {}", row.collective, row.lib), row.in_place);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for (i, (name, in_place)) in names.iter().enumerate() {
        let colour = COLOURS[i / 2 % COLOURS.len()];
        let dash = if *in_place { " stroke-dasharray=\"4 3\"" } else { "" };
        let of =
            |r: &&&Row| format!("{} {}", r.collective, r.lib) == *name && r.in_place == *in_place;
        let points: Vec<String> = usable
            .iter()
            .filter(of)
            .map(|r| format!("{:.1},{:.1}", x(r.bytes as f64), y(r.busbw)))
            .collect();
        let place = if *in_place { ", in place" } else { "" };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash}/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}{place}</text>",
            points.join(" "),
            MARGIN + 8.0,
            MARGIN + 14.0 * (i as f64 + 1.0)
        );
    }
    let _ =
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"30\">bus bandwidth (GB/s) over size</text></svg>");
    svg
}

fn bytes_text(power: i32) -> String {
    match power {
        30.. => format!("{} GiB", 1u64 << (power - 30)),
        20.. => format!("{} MiB", 1u64 << (power - 20)),
        10.. => format!("{} KiB", 1u64 << (power - 10)),
        _ => format!("{} B", 1u64 << power.max(0)),
    }
}
