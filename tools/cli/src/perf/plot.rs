//! A plot over the size as SVG, both axes logarithmic: of the bus bandwidth, or of the ratio of two
//! libraries' times.

use super::report::Row;
use crate::error::{Error, Result};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 11] = [
    "#1b6ca8", "#d1495b", "#2e8b57", "#8e5bb5", "#c77d0a", "#3f3f3f", "#00838f", "#a0522d",
    "#e377c2", "#7f9f00", "#17becf",
];

/// What is drawn.
#[derive(Clone, Copy)]
enum Quantity {
    BusBandwidth,
    Ratio,
}

impl Quantity {
    /// Returns a row's value; `None` where there is none to draw.
    fn of(self, row: &Row) -> Option<f64> {
        let value = match self {
            Quantity::BusBandwidth => Some(row.busbw),
            Quantity::Ratio => row.ratio,
        };
        value.filter(|value| *value > 0.0 && row.bytes > 0)
    }

    /// Returns the factor between lines of the grid.
    fn step(self) -> f64 {
        match self {
            Quantity::BusBandwidth => 10.0,
            Quantity::Ratio => 2.0,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Quantity::BusBandwidth => "bus bandwidth (GB/s) over size",
            Quantity::Ratio => "time of the other library / time of the first one, over size",
        }
    }
}

/// Draws one line per collective, library and place: the ratio if there are ratios, else the bus
/// bandwidth.
pub(super) fn write(path: &str, rows: &[Row]) -> Result<()> {
    let compared = rows.iter().any(|row| row.ratio.is_some());
    let quantity = if compared { Quantity::Ratio } else { Quantity::BusBandwidth };
    std::fs::write(path, draw(rows, quantity))
        .map_err(|e| Error::File { path: path.to_owned(), cause: e.to_string() })
}

/// The values between which the axes go.
struct Axes {
    bytes: (f64, f64),
    value: (f64, f64),
}

impl Axes {
    fn new(points: &[(&Row, f64)], quantity: Quantity) -> Self {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            if low < high { (low, high) } else { (low - 0.5, low + 0.5) }
        };
        // The line where both take the same time is within the picture.
        let same = matches!(quantity, Quantity::Ratio).then_some(0.0);
        let values = points.iter().map(|(_, value)| value.log2());
        Self {
            bytes: range(&mut points.iter().map(|(row, _)| (row.bytes as f64).log2())),
            value: range(&mut values.chain(same)),
        }
    }

    fn x(&self, bytes: f64) -> f64 {
        let (low, high) = self.bytes;
        MARGIN + (bytes.log2() - low) / (high - low) * (WIDTH - 2.0 * MARGIN)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.value;
        HEIGHT - MARGIN - (value.log2() - low) / (high - low) * (HEIGHT - 2.0 * MARGIN)
    }

    /// Draws the grid and the numbers beside it.
    fn grid(&self, quantity: Quantity) -> String {
        let mut svg = String::new();
        // Writing to a string cannot fail.
        for power in self.bytes.0.ceil() as i32..=self.bytes.1.floor() as i32 {
            if power % 4 == 0 {
                let at = self.x(2f64.powi(power));
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
        let powers = quantity.step().log2();
        let lines = (self.value.0 / powers).ceil() as i32..=(self.value.1 / powers).floor() as i32;
        for power in lines {
            let value = quantity.step().powi(power);
            let at = self.y(value);
            let same = matches!(quantity, Quantity::Ratio) && power == 0;
            let colour = if same { "#888" } else { "#ddd" };
            let _ = writeln!(
                svg,
                "<path d=\"M{MARGIN} {at:.1} H{:.1}\" stroke=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{at:.1}\" text-anchor=\"end\">{value}</text>",
                WIDTH - MARGIN,
                MARGIN - 6.0
            );
        }
        svg
    }
}

fn draw(rows: &[Row], quantity: Quantity) -> String {
    let points: Vec<(&Row, f64)> =
        rows.iter().filter_map(|row| Some((row, quantity.of(row)?))).collect();
    let axes = Axes::new(&points, quantity);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    svg += &axes.grid(quantity);
    let name = |row: &Row| (format!("{} {}", row.collective, row.lib), row.in_place);
    let mut names: Vec<(String, bool)> = Vec::new();
    for (row, _) in &points {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
    }
    // Both places of a collective have one colour.
    let mut coloured: Vec<&str> = Vec::new();
    for (i, line) in names.iter().enumerate() {
        if !coloured.contains(&&*line.0) {
            coloured.push(&line.0);
        }
        let colour = coloured.iter().position(|name| *name == line.0).unwrap_or(0);
        let colour = COLOURS[colour % COLOURS.len()];
        let (dash, place) =
            if line.1 { (" stroke-dasharray=\"4 3\"", ", in place") } else { ("", "") };
        let of_line = points.iter().filter(|(row, _)| name(row) == *line);
        let places: Vec<String> = of_line
            .map(|(row, value)| format!("{:.1},{:.1}", axes.x(row.bytes as f64), axes.y(*value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash}/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}{place}</text>",
            places.join(" "),
            MARGIN + 8.0,
            MARGIN + 14.0 * (i as f64 + 1.0),
            line.0
        );
    }
    let title = quantity.title();
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"30\">{title}</text></svg>");
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
