// Stands before a C++ program whose function is called: AREAL_CALL(&f) or AREAL_CALL(&Solution::f) becomes a `main` that
// reads the JSON list of arguments on standard input and writes what the function returns to descriptor 3 as JSON.
// The types are those of the function itself; what does not fit them ends with exit status 3.
#include <bits/stdc++.h>
#include <unistd.h>

using namespace std;

namespace areal_call {

struct Reader {
    std::string text;
    std::size_t at = 0;

    [[noreturn]] void fail() const {
        std::cerr << "the arguments do not fit the function's parameters (at character " << at << ")\n";
        std::_Exit(3);
    }
    bool take(char wanted) {
        while (at < text.size() && std::strchr(" \t\r\n", text[at])) ++at;
        if (at >= text.size() || text[at] != wanted) return false;
        ++at;
        return true;
    }
    void need(char wanted) {
        if (!take(wanted)) fail();
    }
    bool word(const char *wanted) {
        take('\0');
        if (text.compare(at, std::strlen(wanted), wanted) != 0) return false;
        at += std::strlen(wanted);
        return true;
    }
    unsigned hex() {
        if (at + 4 > text.size()) fail();
        unsigned value = std::stoul(text.substr(at, 4), nullptr, 16);
        at += 4;
        return value;
    }
};

inline void append(std::string &out, unsigned code) {
    if (code < 0x80) out += char(code);
    else if (code < 0x800) (out += char(0xC0 | code >> 6)) += char(0x80 | (code & 63));
    else if (code < 0x10000) ((out += char(0xE0 | code >> 12)) += char(0x80 | (code >> 6 & 63))) += char(0x80 | (code & 63));
    else (((out += char(0xF0 | code >> 18)) += char(0x80 | (code >> 12 & 63))) += char(0x80 | (code >> 6 & 63))) += char(0x80 | (code & 63));
}

inline void read(Reader &in, std::string &value) {
    in.need('"');
    while (in.at < in.text.size() && in.text[in.at] != '"') {
        char c = in.text[in.at++];
        if (c != '\\') {
            value += c;
            continue;
        }
        c = in.at < in.text.size() ? in.text[in.at++] : '\0';
        const char *plain = "bfnrt\"\\/", *meant = "\b\f\n\r\t\"\\/";
        if (c == 'u') {
            unsigned code = in.hex();
            if (code >> 10 == 0x36 && in.word("\\u")) code = 0x10000 + ((code & 0x3FF) << 10) + (in.hex() & 0x3FF);
            append(value, code);
        } else if (const char *found = c ? std::strchr(plain, c) : nullptr) value += meant[found - plain];
        else in.fail();
    }
    if (in.at++ >= in.text.size()) in.fail();
}

inline void read(Reader &in, bool &value) {
    value = in.word("true");
    if (!value && !in.word("false")) in.fail();
}

inline void read(Reader &in, char &value) {
    std::string text;
    read(in, text);
    if (text.size() != 1) in.fail();
    value = text[0];
}

template <class T> std::enable_if_t<std::is_arithmetic<T>::value> read(Reader &in, T &value) {
    in.take('\0');
    std::size_t end = in.text.find_first_not_of("+-.0123456789eE", in.at);
    std::string digits = in.text.substr(in.at, end - in.at);
    std::istringstream stream(digits);
    if (!(stream >> value) || stream.peek() != EOF) in.fail();
    in.at += digits.size();
}

template <class A, class B> void read(Reader &in, std::pair<A, B> &value);

template <class T> void read(Reader &in, std::vector<T> &value) {
    in.need('[');
    if (in.take(']')) return;
    do {
        T item{};
        read(in, item);
        value.push_back(std::move(item));
    } while (in.take(','));
    in.need(']');
}

template <class A, class B> void read(Reader &in, std::pair<A, B> &value) {
    in.need('[');
    read(in, value.first);
    in.need(',');
    read(in, value.second);
    in.need(']');
}

inline void write(std::string &out, const std::string &value) {
    out += '"';
    for (unsigned char c : value) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, c < 32 || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
        out += escaped;
    }
    out += '"';
}

inline void write(std::string &out, const char *value) { write(out, std::string(value)); }
inline void write(std::string &out, bool value) { out += value ? "true" : "false"; }
inline void write(std::string &out, char value) { write(out, std::string(1, value)); }

template <class T> std::enable_if_t<std::is_integral<T>::value> write(std::string &out, T value) {
    out += std::to_string(value);
}

template <class T> std::enable_if_t<std::is_floating_point<T>::value> write(std::string &out, T value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", double(value));
    out += std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity") : text;
}

template <class A, class B> void write(std::string &out, const std::pair<A, B> &value);

template <class T> void write(std::string &out, const std::vector<T> &value) {
    out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
        if (i) out += ',';
        write(out, static_cast<const T &>(value[i]));
    }
    out += ']';
}

template <class A, class B> void write(std::string &out, const std::pair<A, B> &value) {
    out += '[';
    write(out, value.first);
    out += ',';
    write(out, value.second);
    out += ']';
}

template <class R, class... A, class F> int invoke(F function) {
    Reader in{std::string(std::istreambuf_iterator<char>(std::cin), {}), 0};
    std::tuple<std::decay_t<A>...> values;
    in.need('[');
    bool first = true;
    std::apply([&](auto &...value) { ((first ? void(first = false) : in.need(','), read(in, value)), ...); }, values);
    in.need(']');
    std::string out;
    if constexpr (std::is_void<R>::value) {
        std::apply(function, values);
        out = "null";
    } else {
        write(out, std::apply(function, values));
    }
    std::cout.flush();
    for (std::size_t sent = 0; sent < out.size();) {
        ssize_t step = ::write(3, out.data() + sent, out.size() - sent);
        if (step < 0) return 4;
        sent += step;
    }
    return 0;
}

template <class R, class... A> int call(R (*function)(A...)) { return invoke<R, A...>(function); }

template <class C, class R, class... A> int call(R (C::*function)(A...)) {
    C object;
    return invoke<R, A...>([&](auto &...value) -> R { return (object.*function)(value...); });
}

template <class C, class R, class... A> int call(R (C::*function)(A...) const) {
    C object;
    return invoke<R, A...>([&](auto &...value) -> R { return (object.*function)(value...); });
}

}  // namespace areal_call

#define AREAL_CALL(function) \
    int main() { return areal_call::call(function); }
