//! Dates for `strftime_now`: seconds since 1970 written by a Python format string.
//!
//! Owns the directives that chat templates use; others are refused by name rather than printed wrong. Times are UTC, so
//! that two servers give one prompt. The day arithmetic is Howard Hinnant's `civil_from_days`.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date in the proleptic Gregorian calendar.
struct Date {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
}

fn civil_from_days(days: i64) -> Date {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Date { year, month, day }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// `seconds` since 1970 as `format` says.
///
/// # Errors
/// The directive that is not known.
pub(super) fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let Date { year, month, day } = civil_from_days(days);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
    let day_of_year = before + day + i64::from(month > 2 && is_leap(year));

    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = characters.next().unwrap_or('%');
        // glibc's `%-d`: the number without padding.
        let padded = directive != '-';
        if !padded {
            directive = characters.next().unwrap_or('-');
        }
        let number = |value: i64, width: usize| if padded { format!("{value:0width$}") } else { value.to_string() };
        let text = match directive {
            'Y' => number(year, 4),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(day_of_year, 3),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{year:04}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'z' => "+0000".to_owned(),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            other => return Err(format!("%{other}")),
        };
        out.push_str(&text);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_equal_those_of_pythons_strftime() {
        let all = "%A %a %B %b %d %-d %m %Y %y %H %I %M %S %p %j %F %T %%";
        // python3 -c 'import datetime as d; print(d.datetime.fromtimestamp(N, d.timezone.utc).strftime(all))'
        for (seconds, expected) in [
            (0, "Thursday Thu January Jan 01 1 01 1970 70 00 12 00 00 AM 001 1970-01-01 00:00:00 %"),
            (1_709_210_096, "Thursday Thu February Feb 29 29 02 2024 24 12 12 34 56 PM 060 2024-02-29 12:34:56 %"),
            (4_107_542_399, "Sunday Sun February Feb 28 28 02 2100 00 23 11 59 59 PM 059 2100-02-28 23:59:59 %"),
            (-1, "Wednesday Wed December Dec 31 31 12 1969 69 23 11 59 59 PM 365 1969-12-31 23:59:59 %"),
        ] {
            assert_eq!(strftime(seconds, all).unwrap(), expected);
        }
        assert_eq!(strftime(0, "%Q").unwrap_err(), "%Q");
    }
}
