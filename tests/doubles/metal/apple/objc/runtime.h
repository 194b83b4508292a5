// Declarations that metal-cpp needs of <objc/runtime.h>, for systems without Apple's headers.
#pragma once

typedef struct objc_class* Class;
typedef struct objc_selector* SEL;
struct objc_object {
  Class isa;
};
typedef struct objc_object* id;
typedef struct objc_object Protocol;

extern "C" {
SEL sel_registerName(const char* name);
const char* sel_getName(SEL selector);
Class objc_lookUpClass(const char* name);
Class objc_getClass(const char* name);
Protocol* objc_getProtocol(const char* name);
Class object_getClass(id object);
const char* class_getName(Class type);
const char* object_getClassName(id object);
}
